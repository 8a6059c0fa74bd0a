"""The parts of the training proxy; andrea/proxy.py puts them together."""
