"""How long a run takes, as arithmetic: floating-point operations over a rate that was measured once.

The count is the usual 6 n per token for the matrices (forward 2, backward 4) plus causal attention. The rates
are what whole training steps reached, and where; another machine differs, so the result is an estimate.
"""

from dataclasses import dataclass

from andrea.experiment import Experiment, Shape


@dataclass(frozen=True)
class Rate:
    """Useful operations per second of whole steps, and the machine that it was measured on."""

    flops: float
    machine: str


# For cuda: ANDREA-12M in bf16 at 8 x 1024; ANDREA-120M reaches half as much again.
RATES = {
    "cpu": Rate(1.5e11, "2 cores of a server CPU"),
    "cuda": Rate(2.7e14, "one H200, 16-bit"),
}


def flops_per_token(shape: Shape) -> float:
    """Forward and backward operations for one token; the tied head counts as a matrix, embeddings as look-ups."""
    matrices = 12 * shape.n_layers * shape.d_model**2 + shape.vocab_size * shape.d_model
    attention = 6 * shape.n_layers * shape.d_model * shape.context
    return 6.0 * matrices + attention


def training_seconds(experiment: Experiment, engine: str) -> float:
    """Seconds for all steps of `experiment` on the machine that RATES names for `engine`."""
    t = experiment.train
    tokens = t.steps * t.batch_size * experiment.model.context
    return tokens * flops_per_token(experiment.shape) / RATES[engine].flops
