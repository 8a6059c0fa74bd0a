"""Gradient clipping by the global L2 norm, AdamW with decoupled weight decay, and clearing.

m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
w = w - lr * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w)

Loshchilov and Hutter 2019; eps stands outside the root. The norm is taken in two stages of fixed order.
"""

import numpy as np

from andrea.engine.kernels import NORM_CHUNK, Array


def k_grad_norm_partial(partials: Array, g: Array) -> None:
    """Assign partials (ceil(n / NORM_CHUNK),) float64: the sum of squares of each chunk of g (n,)."""
    for i in range(len(partials)):
        partials[i] = np.square(g[i * NORM_CHUNK : (i + 1) * NORM_CHUNK], dtype=np.float64).sum()


def k_grad_norm_final(partials: Array) -> float:
    """The norm: root of the partial sums, added in order."""
    total = 0.0
    for partial in partials.tolist():
        total += partial
    return float(np.sqrt(total))


def k_grad_scale(g: Array, scale: float) -> None:
    """g *= scale."""
    g *= scale


def k_adamw(
    w: Array,
    m: Array,
    v: Array,
    g: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    """Update w, m, v (n,) in place. `step` is 1 for the first update; decay is 0 for gains and biases."""
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    update = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps)
    w -= lr * (update + decay * w)


def k_zero_grads(g: Array) -> None:
    """g = 0."""
    g[:] = 0
