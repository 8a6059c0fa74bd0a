"""LayerNorm over the last axis.

forward   xh = (x - mean) * rstd             y   = xh * gamma + beta
backward  g  = dy * gamma                    dx += rstd * (g - avg(g) - xh * avg(g * xh))
          dgamma += sum over rows of dy * xh      dbeta += sum over rows of dy
"""

import numpy as np

from andrea.engine.kernels import LAYERNORM_EPS, Array


def k_layernorm_fwd(y: Array, mean: Array, rstd: Array, x: Array, gamma: Array, beta: Array) -> None:
    """Assign y (N, C), mean (N,), rstd (N,). The variance is a second pass: one pass cancels when |mean| is large."""
    mean[:] = x.mean(axis=1)
    centred = x - mean[:, None]
    rstd[:] = 1 / np.sqrt(np.square(centred).mean(axis=1) + x.dtype.type(LAYERNORM_EPS))
    y[:] = centred * rstd[:, None] * gamma + beta


def k_layernorm_bwd(
    dx: Array, dgamma: Array, dbeta: Array, dy: Array, x: Array, gamma: Array, mean: Array, rstd: Array
) -> None:
    """Add into dx (N, C), the residual stream's gradient, and into dgamma (C,) and dbeta (C,)."""
    xh = (x - mean[:, None]) * rstd[:, None]
    g = dy * gamma
    dx += rstd[:, None] * (g - g.mean(axis=1, keepdims=True) - xh * (g * xh).mean(axis=1, keepdims=True))
    dgamma += (dy * xh).sum(axis=0)
    dbeta += dy.sum(axis=0)
