"""Where every parameter lies in the flat float32 vector, which ones decay, and what they start from.

The order is the checkpoint's: wte, wpe, then per layer W_Q W_K W_V W_O W_1 W_2 and the two LayerNorms, then LN_f,
then the head if it is not tied. Matrices are (in, out). An untied head is (V, C) like wte, so that one loss op
serves both.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.experiment import InitSpec, Shape
from andrea.philox import generator

__all__ = ["InitSpec", "Parameter", "Shape", "count", "decay_groups", "initial_weights", "parameters", "views"]

MLP_RATIO = 4
RESIDUAL_OUTPUTS = ("W_O", "W_2")  # what writes into the residual stream


@dataclass(frozen=True)
class Parameter:
    """One tensor. `kind` is embedding, position, matrix, gamma, beta or head; offset and size count floats."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    kind: str
    decay: bool


def parameters(shape: Shape) -> tuple[Parameter, ...]:
    """The table in flat order, without gaps."""
    table: list[Parameter] = []
    offset = 0
    for name, dims, kind in _tensors(shape):
        size = math.prod(dims)
        table.append(Parameter(name, dims, offset, size, kind, decay=kind not in ("gamma", "beta")))
        offset += size
    return tuple(table)


def count(shape: Shape) -> int:
    """Number of parameters; a tied head counts once."""
    last = parameters(shape)[-1]
    return last.offset + last.size


def decay_groups(shape: Shape) -> tuple[tuple[int, int, bool], ...]:
    """(start, stop, decay) spans that cover the flat vector exactly once, in order; neighbours differ in decay."""
    groups: list[tuple[int, int, bool]] = []
    for p in parameters(shape):
        if groups and groups[-1][2] == p.decay:
            groups[-1] = (groups[-1][0], p.offset + p.size, p.decay)
        else:
            groups.append((p.offset, p.offset + p.size, p.decay))
    covered = sum(stop - start for start, stop, _ in groups)
    assert covered == count(shape), f"decay groups cover {covered} of {count(shape)} parameters"
    return tuple(groups)


def views(flat: NDArray[Any], shape: Shape) -> dict[str, NDArray[Any]]:
    """Each parameter of the flat vector by name, as a view."""
    return {p.name: flat[p.offset : p.offset + p.size].reshape(p.shape) for p in parameters(shape)}


def initial_weights(shape: Shape, init: InitSpec, seed: int) -> NDArray[np.float32]:
    """The flat start vector. One Philox stream a tensor, so that a change of one tensor leaves the others as they were."""
    flat = np.empty(count(shape), np.float32)
    for p in parameters(shape):
        target = flat[p.offset : p.offset + p.size]
        if p.kind in ("gamma", "beta"):
            target[:] = 1.0 if p.kind == "gamma" else 0.0
        else:
            generator(seed, "init", p.name).standard_normal(p.size, np.float32, target)
            target *= np.float32(_std(p, shape, init))
    return flat


def _std(p: Parameter, shape: Shape, init: InitSpec) -> float:
    std = {
        "embedding": init.embedding_std,
        "position": init.position_std,
        "matrix": init.matrix_std,
        "head": init.head_std,
    }[p.kind]
    if init.residual_scaling and p.name.endswith(RESIDUAL_OUTPUTS):
        std /= math.sqrt(2 * shape.n_layers)  # 2 L branches add up in the residual stream (GPT-2, 2019)
    return std


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, dims, kind) in flat order."""
    c, hidden = shape.d_model, MLP_RATIO * shape.d_model
    yield "wte", (shape.vocab_size, c), "embedding"
    yield "wpe", (shape.context, c), "position"
    for layer in range(shape.n_layers):
        for matrix in ("W_Q", "W_K", "W_V", "W_O"):
            yield f"{layer}.{matrix}", (c, c), "matrix"
        yield f"{layer}.W_1", (c, hidden), "matrix"
        yield f"{layer}.W_2", (hidden, c), "matrix"
        for norm in ("LN1", "LN2"):
            yield f"{layer}.{norm}.gamma", (c,), "gamma"
            yield f"{layer}.{norm}.beta", (c,), "beta"
    yield "LN_f.gamma", (c,), "gamma"
    yield "LN_f.beta", (c,), "beta"
    if not shape.tied_head:
        yield "head", (shape.vocab_size, c), "head"
