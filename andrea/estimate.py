"""How long a run takes and whether it fits, as arithmetic. `andrea show` and docs/SPEED.md both print this.

On a GPU: every launch of a step takes as long as the slower of its operations and its bytes at the card's peak; the sum is a
floor that no program passes. Whole steps reach a share of it, which was measured on one H200 and is taken for every card.
On the CPU: operations over a rate that was measured once. Samples, validation and checkpoints are not counted.
"""

from andrea.cards import CARDS, Card
from andrea.engine.arena import plan_memory
from andrea.engine.cuda.weights import LOW_PRECISION
from andrea.experiment import Experiment, Shape, TrainSpec
from andrea.progress import short_time
from andrea.work import step_work

CPU_FLOPS, CPU_MACHINE = 1.5e11, "2 cores of a server CPU"  # useful operations of whole steps
# Floor over measured time at 8 x 1024 on one H200, by width: ANDREA-12M (heads of 32) and ANDREA-120M (of 64) in bf16.
SHARES_16_BIT = {384: 0.523, 768: 0.627}
SHARES = {"fp32": 0.550, "tf32": 0.419}  # of ANDREA-12M
RESERVE = 1.0  # GiB of a card that the driver, the libraries' code and a desktop take


def floor_seconds(shape: Shape, train: TrainSpec, card: Card) -> float:
    """One step if every launch ran at the card's peak."""
    low = train.precision in LOW_PRECISION
    rates = {
        "matrix": card.half if low else card.tf32 if train.precision == "tf32" else card.fp32,
        "attention": card.half if low else card.fp32,
        "plain": float("inf"),  # bytes decide
    }
    limits = (
        (w.times, w.flops / rates[w.unit] / 1e12, w.nbytes / card.bandwidth / 1e9) for w in step_work(shape, train)
    )
    return sum(times * max(compute, memory) for times, compute, memory in limits)


def share(shape: Shape, precision: str) -> float:
    """Which part of the floor's speed a step is expected to reach: what the H200 did at the nearest measured width."""
    if precision not in LOW_PRECISION:
        return SHARES[precision]
    return SHARES_16_BIT[min(SHARES_16_BIT, key=lambda width: abs(width - shape.d_model))]


def step_seconds(shape: Shape, train: TrainSpec, card: Card) -> float:
    """One step, expected."""
    return floor_seconds(shape, train, card) / share(shape, train.precision)


def fits(nbytes: int, card: Card) -> bool:
    """Whether a plan of so many bytes finds room on `card`."""
    return nbytes / 2**30 + RESERVE <= card.memory


def cuda_seconds(experiment: Experiment, card: Card) -> float:
    """All steps of `experiment` on `card`, expected."""
    return experiment.train.steps * step_seconds(experiment.shape, experiment.train, card)


def cpu_seconds(experiment: Experiment) -> float:
    """All steps of `experiment` on the machine CPU_MACHINE."""
    t = experiment.train
    tokens = t.steps * t.batch_size * experiment.model.context
    return tokens * flops_per_token(experiment.shape) / CPU_FLOPS


def flops_per_token(shape: Shape) -> float:
    """Forward and backward operations for one token; the tied head counts as a matrix, embeddings as look-ups."""
    matrices = 12 * shape.n_layers * shape.d_model**2 + shape.vocab_size * shape.d_model
    attention = 6 * shape.n_layers * shape.d_model * shape.context
    return 6.0 * matrices + attention


def expected(experiment: Experiment, done: int = 0) -> dict[str, float]:
    """Seconds for the steps past `done`, by machine: that of the CPU rate, or the fastest and the slowest card."""
    t = experiment.train
    left = max(0, t.steps - done) / t.steps
    if t.engine == "cpu":
        return {CPU_MACHINE: left * cpu_seconds(experiment)}
    return {f"an {card.name}": left * cuda_seconds(experiment, card) for card in (CARDS[0], CARDS[-1])}


def outlook(experiment: Experiment, done: int = 0) -> str:
    """What training past step `done` takes, in one line."""
    t, plan = experiment.train, plan_memory(experiment)
    times = ", ".join(f"{short_time(s)} on {machine}" for machine, s in expected(experiment, done).items())
    return (
        f"{experiment.name}: {max(0, t.steps - done):,} steps to go, about {times} (estimate), "
        f"{plan.total / 1e6:,.0f} MB on the {t.engine} engine"
    )
