"""How long a run takes, as arithmetic: floating-point operations over a rate that was measured once.

The count is the usual 6 n per token for the matrices (forward 2, backward 4) plus causal attention. The rates
are what whole training steps reached, and where; another machine differs, so the result is an estimate.
"""

from dataclasses import dataclass

from andrea.engine.arena import plan_memory
from andrea.experiment import Experiment, Shape
from andrea.progress import short_time


@dataclass(frozen=True)
class Rate:
    """Useful operations per second of whole steps, and the machine that it was measured on."""

    flops: float
    machine: str


CPU = Rate(1.5e11, "2 cores of a server CPU")
# ANDREA-12M at 8 x 1024; ANDREA-120M reaches half as much again in 16 bits.
CUDA = {
    "fp32": Rate(3.2e13, "one H200 in fp32"),
    "tf32": Rate(6.2e13, "one H200 in tf32"),
    "bf16": Rate(2.7e14, "one H200 in 16 bits"),
    "fp16": Rate(2.7e14, "one H200 in 16 bits"),
}


def rate(experiment: Experiment, engine: str) -> Rate:
    """What whole steps reached on `engine`, in the experiment's precision; the CPU engine has one."""
    return CPU if engine == "cpu" else CUDA[experiment.train.precision]


def flops_per_token(shape: Shape) -> float:
    """Forward and backward operations for one token; the tied head counts as a matrix, embeddings as look-ups."""
    matrices = 12 * shape.n_layers * shape.d_model**2 + shape.vocab_size * shape.d_model
    attention = 6 * shape.n_layers * shape.d_model * shape.context
    return 6.0 * matrices + attention


def training_seconds(experiment: Experiment, engine: str, done: int = 0) -> float:
    """Seconds for the steps of `experiment` past `done` on the machine that `rate` names, and nothing but the steps.

    Samples, validation and checkpoints are not counted.
    """
    t = experiment.train
    tokens = max(0, t.steps - done) * t.batch_size * experiment.model.context
    return tokens * flops_per_token(experiment.shape) / rate(experiment, engine).flops


def outlook(experiment: Experiment, done: int = 0) -> str:
    """What training past step `done` takes, in one line."""
    t, plan = experiment.train, plan_memory(experiment)
    return (
        f"{experiment.name}: {max(0, t.steps - done):,} steps to go, about "
        f"{short_time(training_seconds(experiment, t.engine, done))} on {rate(experiment, t.engine).machine} (estimate), "
        f"{plan.total / 1e6:,.0f} MB on the {t.engine} engine"
    )
