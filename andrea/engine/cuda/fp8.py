"""Precision fp8: which tensors are E4M3 numbers, where they lie, and what each is scaled by. See kernels/fp8.cuh.

It is bf16, but for the products of QKV and of the MLP: their inputs, their output gradients and their weights are rounded
to E4M3. cuBLASLt multiplies such numbers only where both operands lie along the sum, so each matrix is kept twice, as it is
for the input gradient and transposed for the forward. Weight gradients stay in bf16: their sum runs over rows, along which
no activation lies, and a transposed copy of each would cost more than the product gains.

A tensor is multiplied by a power of two before it is rounded. For a weight it follows from the matrix itself. For the
others, which are cast as they are made, it follows from their largest numbers in the last steps (delayed scaling,
Micikevicius et al. 2022): these histories are state. What exceeds 448 after all is cut to 448 for one step.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.weights import QKV, copies
from andrea.engine.layout import MLP_RATIO, parameters
from andrea.engine.plan import Buffer
from andrea.errors import CheckpointError
from andrea.experiment import Shape

CAPABILITY = (8, 9)  # the first cards that multiply such numbers
E4M3 = "float8_e4m3"
MATRICES = (QKV[0], "W_1", "W_2")  # of a layer; the first stands for the packed three
HISTORY = 16  # steps
CAST_BLOCKS = 1024  # of a cast or a LayerNorm, at most: each has a maximum of its own
WEIGHT_PARTS = 64  # blocks that look for a matrix's maximum
SCALE_WORDS = 4  # struct Scale: back, to, and padding
FIRST_INPUT = 8.0  # the largest number of an input, before one has been seen: inputs come from LayerNorm and GELU
FIRST_GRADIENT = 8.0  # of a gradient, times the tokens of a microbatch

_TOP, _SPARE, _WIDEST = 8, 1, 100  # as in kernels/fp8.cuh


def matrices(shape: Shape) -> dict[str, tuple[int, int, int, int]]:
    """struct Matrix of kernels/fp8.cu by name: where the 16-bit copy begins, rows, columns, where the E4M3 copies begin."""
    places, sizes, to = copies(shape), {p.name: p.shape for p in parameters(shape)}, 0
    table = {}
    for layer in range(shape.n_layers):
        for part in MATRICES:
            name = f"{layer}.{part}"
            rows, columns = sizes[name][0], places[name].stride
            table[name] = (places[name].offset, rows, columns, to)
            to += rows * columns
    return table


def matrix_elements(shape: Shape) -> int:
    """Numbers of all E4M3 matrices, one copy of each."""
    return sum(rows * columns for _, rows, columns, _ in matrices(shape).values())


def tensors(shape: Shape) -> int:
    """Tensors with a history: input and output gradient of each matrix, side by side."""
    return 2 * len(MATRICES) * shape.n_layers


def fp8_buffers(shape: Shape, rows: int) -> Iterator[Buffer]:
    """What precision fp8 holds beside bf16's buffers; for microbatches of `rows` rows."""
    n, m, t = matrix_elements(shape), len(MATRICES) * shape.n_layers, tensors(shape)
    yield Buffer("working copies", "fp8_natural", (n,), E4M3)
    yield Buffer("working copies", "fp8_transposed", (n,), E4M3)
    yield Buffer("workspace", "fp8_operand", (rows * shape.context * MLP_RATIO * shape.d_model,), E4M3)
    yield Buffer("workspace", "fp8_stream", (rows * shape.context * shape.d_model,), E4M3)
    yield Buffer("workspace", "fp8_scales", (t + m, SCALE_WORDS))
    yield Buffer("workspace", "fp8_history", (t, HISTORY))
    yield Buffer("workspace", "fp8_largest", (t, CAST_BLOCKS))
    yield Buffer("workspace", "fp8_weight_largest", (m, WEIGHT_PARTS))
    yield Buffer("workspace", "fp8_matrices", (m, 4), "int32")


def first_largest(shape: Shape, rows: int) -> tuple[float, float]:
    """Of an input and of a gradient, where the history is empty. The loss is a mean over the microbatch's tokens."""
    return FIRST_INPUT, FIRST_GRADIENT / (rows * shape.context)


def exponents(largest: NDArray[np.float32], spare: int = _SPARE) -> NDArray[np.int32]:
    """e of the scale 2^e, the largest that leaves numbers up to `largest` at most 448 / 2^spare."""
    fraction, exponent = np.frexp(largest)  # fraction in [0.5, 1), so 1.75 * 2^e is 0.875 * 2^(e + 1)
    e = _TOP - spare - (exponent - 1 + (fraction > 0.875))
    return np.clip(np.where(largest > 0, e, _WIDEST), -_WIDEST, _WIDEST).astype(np.int32)


def scales(history: NDArray[np.float32], first: tuple[float, float]) -> NDArray[np.float32]:
    """struct Scale for each row of a history, as k_fp8_scales makes it."""
    largest, started = history.max(axis=1), history.any(axis=1)
    largest = np.where(started, largest, np.resize(np.array(first, np.float32), len(history)))
    e, made = exponents(largest), np.zeros((len(history), SCALE_WORDS), np.float32)
    made[:, 0], made[:, 1] = np.ldexp(np.float32(1), -e), np.ldexp(np.float32(1), e)
    return made


def to_state(history: NDArray[np.float32]) -> str:
    """A history as JSON text: its bytes, little-endian, in hexadecimal."""
    return history.astype("<f4").tobytes().hex()


def from_state(value: Any, shape: Shape) -> NDArray[np.float32]:
    """The opposite; CheckpointError when it is not a history of this model."""
    try:
        history = np.frombuffer(bytes.fromhex(value), "<f4").reshape(tensors(shape), HISTORY).astype(np.float32)
    except (TypeError, ValueError) as cause:
        raise CheckpointError(
            f"the state must hold {HISTORY} steps of {tensors(shape)} FP8 tensors",
            got=cause,
            fix="use another checkpoint",
        ) from cause
    if not (np.isfinite(history) & (history >= 0)).all():
        raise CheckpointError(
            "the largest numbers of FP8 tensors must be finite and not below 0",
            got=history[~(np.isfinite(history) & (history >= 0))][0],
            fix="use another checkpoint",
        )
    return history
