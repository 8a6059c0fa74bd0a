"""Clipping, AdamW and clearing over flat spans. Formulas and contracts: andrea.engine.reference.optimizer."""

from typing import Any

import numpy as np
from numba import njit

from andrea.engine.kernels import NORM_CHUNK
from andrea.engine.loops.lanes import row_dot
from andrea.engine.loops.maths import LOOP, f32
from andrea.engine.loops.products import ITEM

PIECE = 4096  # floats that are summed in float32 before the sum goes on in float64


@njit(**LOOP)
def k_grad_norm_partial(partials: Any, g: Any) -> None:
    """See the reference."""
    for i in range(len(partials)):
        stop = min((i + 1) * NORM_CHUNK, len(g))
        total = 0.0
        for start in range(i * NORM_CHUNK, stop, PIECE):
            piece = g.ctypes.data + ITEM * start
            total += row_dot(piece, piece, min(PIECE, stop - start))
        partials[i] = total


@njit(**LOOP)
def k_grad_norm_final(partials: Any) -> Any:
    """See the reference."""
    total = 0.0
    for i in range(len(partials)):
        total += partials[i]
    return np.sqrt(total)


@njit(**LOOP)
def k_grad_scale(g: Any, scale: float) -> None:
    """See the reference."""
    factor = f32(scale)
    for i in range(len(g)):
        g[i] *= factor


@njit(**LOOP)
def k_adamw(
    w: Any, m: Any, v: Any, g: Any, lr: float, beta1: float, beta2: float, eps: float, decay: float, step: int
) -> None:
    """See the reference."""
    gain1, gain2 = f32(1 - beta1), f32(1 - beta2)
    unbias1, unbias2 = f32(1 / (1 - beta1**step)), f32(1 / (1 - beta2**step))
    rate, small, shrink = f32(lr), f32(eps), f32(decay)
    for i in range(len(w)):
        m[i] += gain1 * (g[i] - m[i])
        v[i] += gain2 * (g[i] * g[i] - v[i])
        update = m[i] * unbias1 / (np.sqrt(v[i] * unbias2) + small)
        w[i] -= rate * (update + shrink * w[i])


@njit(**LOOP)
def k_zero_grads(g: Any) -> None:
    """See the reference."""
    for i in range(len(g)):
        g[i] = f32(0)
