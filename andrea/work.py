"""What one training step of the CUDA engine does, counted launch by launch: operations, and bytes that cross the card's memory.

Every operand is counted as read or written once, at its size in memory; caches are not. A test compares the list with what
the engine would launch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from andrea.engine.cuda.buffers import SLABS
from andrea.engine.cuda.weights import LOW_PRECISION, copied_elements, padded_vocabulary
from andrea.engine.layout import MLP_RATIO, count
from andrea.experiment import Shape, TrainSpec

FLOAT = 4


@dataclass(frozen=True)
class Work:
    """`times` equal launches, each of `flops` operations and `nbytes`. `unit`: matrix, attention, or plain for neither."""

    name: str
    times: int
    nbytes: float
    flops: float = 0.0
    unit: str = "plain"


def step_work(shape: Shape, train: TrainSpec) -> list[Work]:
    """All launches of one step."""
    micro = [*_microbatch(shape, train, train.batch_size // train.microbatches)]
    repeated = [Work(w.name, w.times * train.microbatches, w.nbytes, w.flops, w.unit) for w in micro]
    return [*repeated, *_update(shape, train.precision)]


def _microbatch(s: Shape, train: TrainSpec, rows: int) -> Iterator[Work]:
    low = train.precision in LOW_PRECISION
    a, n, c, layers = (2 if low else FLOAT), rows * s.context, s.d_model, s.n_layers
    again = layers - 1 if train.recompute else 0
    p, head = padded_vocabulary(s), padded_vocabulary(s) if low else s.vocab_size
    yield Work("embed", 1, a * n * c + FLOAT * (n + s.context) * c)
    yield Work("embed backward", 1, a * n * c + 2 * FLOAT * (s.vocab_size + s.context) * c)
    yield from _norms(s, n, a, again)
    yield from _products("qkv", layers, again, n, c, 3 * c, a, parts=1 if low else 3)
    yield from _attention(s, rows, a, again)
    yield from _products("out", layers, again, n, c, c, a, adds=True)
    yield from _products("up", layers, again, n, c, MLP_RATIO * c, a)
    yield Work("gelu", layers, a * 2 * MLP_RATIO * n * c)
    yield Work("gelu backward", layers, a * 4 * MLP_RATIO * n * c)
    yield from _products("down", layers, 0, n, MLP_RATIO * c, c, a, adds=True)
    yield from _forward_and_input("head", 1, 0, n, c, head, a)
    yield _weight_gradient("head", 1, n, c, p, a)
    yield Work("loss", 1, a * 2 * n * p + FLOAT * n)
    yield Work("mean loss", 1, FLOAT * n)
    yield Work("clear", 1, a * n * c)


def _products(
    name: str, times: int, again: int, n: int, i: int, o: int, a: int, *, adds: bool = False, parts: int = 1
) -> Iterator[Work]:
    """y (N, O) = x (N, I) w (I, O), and its two gradients."""
    yield from _forward_and_input(name, times, again, n, i, o, a, adds=adds, parts=parts)
    yield _weight_gradient(name, times, n, i, o, a)


def _forward_and_input(
    name: str, times: int, again: int, n: int, i: int, o: int, a: int, *, adds: bool = False, parts: int = 1
) -> Iterator[Work]:
    """`adds`: y also gets the residual; `parts`: in how many products the input's gradient is made."""
    flops, passed = 2.0 * n * i * o, a * (n * i + n * o + i * o)
    yield Work(name, times + again, passed + (a * n * o if adds else 0), flops, "matrix")
    each = (passed + 2 * (parts - 1) * a * n * i) / parts
    yield Work(f"{name}, input gradient", parts * times, each, flops / parts, "matrix")


def _weight_gradient(name: str, times: int, n: int, i: int, o: int, a: int) -> Work:
    passed = a * (n * i + n * o) + 2 * FLOAT * i * o
    return Work(f"{name}, weight gradient", times, passed, 2.0 * n * i * o, "matrix")


def _attention(s: Shape, rows: int, a: int, again: int) -> Iterator[Work]:
    """Causal: half of each T x T product. Backward makes scores and their gradients twice, once for dq, once for dk and dv."""
    product, n, c = float(rows * s.context**2 * s.d_model), rows * s.context, s.d_model
    numbers = FLOAT * n * s.n_heads
    yield Work("attention", s.n_layers + again, a * 4 * n * c + numbers, 2 * product, "attention")
    yield Work("attention, dq", s.n_layers, a * 6 * n * c + 3 * numbers, 3 * product, "attention")
    yield Work("attention, dk and dv", s.n_layers, a * 6 * n * c + 2 * numbers, 4 * product, "attention")


def _norms(s: Shape, n: int, a: int, again: int) -> Iterator[Work]:
    c, norms = s.d_model, 2 * s.n_layers + 1
    sums = FLOAT * SLABS * 2 * c
    yield Work("LayerNorm", norms + 2 * again, a * 2 * n * c + FLOAT * 2 * n)
    yield Work("LayerNorm backward", norms, a * 4 * n * c + FLOAT * 2 * n + sums)
    yield Work("LayerNorm, gains and shifts", 1, norms * sums)


def _update(s: Shape, precision: str) -> Iterator[Work]:
    n = count(s)
    copy = 2 * copied_elements(s) if precision in LOW_PRECISION else 0
    yield Work("clear gradients", 1, FLOAT * n)
    yield Work("norm", 1, FLOAT * n)
    yield Work("norm, last sum", 1, 0)
    yield Work("AdamW", 1, 7 * FLOAT * n + copy)
