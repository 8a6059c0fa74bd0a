"""LayerNorm by rows. Formulas and contracts: andrea.engine.reference.layernorm."""

from typing import Any

import numpy as np
from numba import njit

from andrea.engine.kernels import LAYERNORM_EPS
from andrea.engine.loops.lanes import row_dot, row_square_difference, row_sum, row_weighted_difference
from andrea.engine.loops.maths import LOOP, f32

EPS = f32(LAYERNORM_EPS)


@njit(**LOOP)
def k_layernorm_fwd(y: Any, mean: Any, rstd: Any, x: Any, gamma: Any, beta: Any) -> None:
    """See the reference."""
    rows, width = x.shape
    for n in range(rows):
        row, out = x[n], y[n]
        centre = row_sum(row.ctypes.data, width) / f32(width)
        variance = row_square_difference(row.ctypes.data, centre, width) / f32(width)
        inverse = f32(1) / np.sqrt(variance + EPS)
        for c in range(width):
            out[c] = (row[c] - centre) * inverse * gamma[c] + beta[c]
        mean[n], rstd[n] = centre, inverse


@njit(**LOOP)
def k_layernorm_bwd(dx: Any, dgamma: Any, dbeta: Any, dy: Any, x: Any, gamma: Any, mean: Any, rstd: Any) -> None:
    """See the reference."""
    rows, width = x.shape
    share = f32(1) / f32(width)
    weight = gamma.ctypes.data
    for n in range(rows):
        row, up, down = x[n], dy[n], dx[n]
        centre, inverse = mean[n], rstd[n]
        mean_g = row_dot(up.ctypes.data, weight, width) * share
        mean_gx = row_weighted_difference(up.ctypes.data, weight, row.ctypes.data, centre, width) * inverse * share
        for c in range(width):
            xh = (row[c] - centre) * inverse
            down[c] += inverse * (up[c] * gamma[c] - mean_g - xh * mean_gx)
            dgamma[c] += up[c] * xh
            dbeta[c] += up[c]
