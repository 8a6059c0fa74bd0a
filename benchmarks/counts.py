"""What each op of a training step has to do, counted: operations, and bytes that must move at least once.

FLOP are multiplications and additions of the matrix products and of attention, whose causal half counts (backward as 2.5
times forward, though ours makes 3.5). Elementwise arithmetic counts as nothing. Bytes are every operand read once and
every result written once, however often a kernel does; what stays in the cache makes a kernel look better than memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from andrea.engine.cuda.buffers import SLABS
from andrea.engine.cuda.weights import LOW_PRECISION, copied_elements, padded_vocabulary
from andrea.engine.layout import MLP_RATIO, count
from andrea.experiment import Shape

# What one NVIDIA H200 reaches: large 16-bit products and large copies, measured; fp32 and tf32 are NVIDIA's data sheet.
PEAK_FLOPS = {"bf16": 790e12, "fp16": 790e12, "tf32": 494.7e12, "fp32": 66.9e12}
PEAK_BYTES = 4.3e12
FLOAT = 4


@dataclass(frozen=True)
class Work:
    """One op: how often a step does it, and what one of them costs."""

    times: int
    flop: float
    nbytes: float

    def floor(self, precision: str) -> float:
        """Seconds that it takes at least on the card of the peaks."""
        return max(self.flop / PEAK_FLOPS[precision], self.nbytes / PEAK_BYTES)

    def rate(self, seconds: float) -> tuple[float, str]:
        """TFLOP/s where there are products, else GB/s."""
        return (self.flop / seconds / 1e12, "TFLOP/s") if self.flop else (self.nbytes / seconds / 1e9, "GB/s")


def work(shape: Shape, rows: int, precision: str, *, fused: bool = False) -> dict[str, Work]:
    """Every op of a step on `rows` rows by name; the residual sum, which the products do, stands at 0 times.

    `fused`: GELU is made by the products before it, forward and backward.
    """
    ops = {
        **dict(_products(shape, rows, precision)),
        **dict(_layers(shape, rows, precision)),
        **_update(shape, precision),
    }
    if fused:
        hidden = _itemsize(precision) * rows * shape.context * MLP_RATIO * shape.d_model
        for name, product, gelu, more in (
            ("mlp forward", "up forward", "gelu forward", 1),  # a beside h
            ("mlp input gradient", "down input gradient", "gelu backward", 2),  # h in, a beside dh
        ):
            old = ops.pop(product)
            ops[name] = Work(old.times, old.flop, old.nbytes + more * hidden)
            del ops[gelu]
    return ops


def _products(shape: Shape, rows: int, precision: str) -> Iterator[tuple[str, Work]]:
    """The matrix products (N, I) x (I, O), each with its two gradients."""
    n, c, a = rows * shape.context, shape.d_model, _itemsize(precision)
    hidden, layers = MLP_RATIO * c, shape.n_layers
    sizes = {"qkv": (c, 3 * c), "out": (c, c), "up": (c, hidden), "down": (hidden, c)}
    for name, (i, o, times) in {
        **{name: (*pair, layers) for name, pair in sizes.items()},
        "head": (c, padded_vocabulary(shape), 1),
    }.items():
        flop, operands = 2.0 * n * i * o, a * (n * i + i * o + n * o)
        residual = a * n * o if name in ("out", "down") else 0
        yield f"{name} forward", Work(times, flop, operands + residual)
        yield f"{name} input gradient", Work(times, flop, operands)
        yield f"{name} weight gradient", Work(times, flop, a * (n * i + n * o) + 2 * FLOAT * i * o)  # it is added to


def _layers(shape: Shape, rows: int, precision: str) -> Iterator[tuple[str, Work]]:
    """Everything between the products."""
    n, c, t, layers, a = rows * shape.context, shape.d_model, shape.context, shape.n_layers, _itemsize(precision)
    norms, activation, lse = 2 * layers + 1, a * n * c, FLOAT * n * shape.n_heads
    attention = 2.0 * rows * t * t * c  # q k' and p v, half of (T, T)
    tables = FLOAT * c * (min(n, shape.vocab_size) + t)
    partials = FLOAT * SLABS * 2 * c
    yield "embed forward", Work(1, 0, activation + tables)
    yield "embed backward", Work(1, 0, activation + 2 * tables)
    yield "layernorm forward", Work(norms, 0, 2 * activation + 2 * FLOAT * (n + c))
    yield "layernorm backward", Work(norms, 0, 4 * activation + FLOAT * (2 * n + c) + partials)
    yield "layernorm parameters", Work(1, 0, norms * (partials + 2 * FLOAT * 2 * c))
    yield "attention forward", Work(layers, attention, 4 * activation + lse)
    yield (
        "attention backward",
        Work(layers, 2.5 * attention, 8 * activation + 5 * lse),
    )  # lse; two scratch numbers, twice
    yield "attention backward, dq", Work(0, 1.5 * attention, 6 * activation + 3 * lse)  # both stand in the line above
    yield "attention backward, dk dv", Work(0, 2.0 * attention, 6 * activation + 2 * lse)
    yield "gelu forward", Work(layers, 0, 2 * MLP_RATIO * activation)
    yield "gelu backward", Work(layers, 0, 4 * MLP_RATIO * activation)
    yield "residual forward", Work(0, 0, 3 * activation)
    yield "loss", Work(1, 0, 2 * a * n * padded_vocabulary(shape) + 3 * FLOAT * n)


def _update(shape: Shape, precision: str) -> dict[str, Work]:
    """Norm, AdamW and clearing, on flat float32 vectors; AdamW writes the 16-bit copies too."""
    n = count(shape)
    copies = _itemsize(precision) * copied_elements(shape) if precision in LOW_PRECISION else 0
    return {
        "grad norm": Work(1, 0, FLOAT * n),
        "adamw": Work(1, 0, 7 * FLOAT * n + copies),
        "zero": Work(1, 0, FLOAT * n),
    }


def _itemsize(precision: str) -> int:
    return 2 if precision in LOW_PRECISION else FLOAT
