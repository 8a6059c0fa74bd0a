"""ANDREA: one DAG from raw conversations to a small chat language model, exact on every resume."""

__version__ = "0.1.0"
