"""The matrix ops of a block, and the residual sum.

qkv       q = x W_Q   k = x W_K   v = x W_V                 dx = dq W_Q' + dk W_K' + dv W_V'   dW_Q += x' dq ...
out       y = x W_O                                         dx = dy W_O'                       dW_O += x' dy
mlp       h = x W_1   y = gelu(h) W_2                       dh = (dy W_2') gelu'(h)   dx = dh W_1'
                                                            dW_2 += gelu(h)' dy       dW_1 += x' dh
residual  out = a + b                                       da = dout   db = dout

GELU in its tanh form (Hendrycks and Gimpel 2016, section 2).
"""

import numpy as np

from andrea.engine.kernels import Array

GELU_SCALE = float(np.sqrt(2 / np.pi))
GELU_CUBE = 0.044715


def k_attn_qkv_fwd(q: Array, k: Array, v: Array, x: Array, w_q: Array, w_k: Array, w_v: Array) -> None:
    """Assign q, k, v (N, C) from x (N, C)."""
    np.matmul(x, w_q, out=q)
    np.matmul(x, w_k, out=k)
    np.matmul(x, w_v, out=v)


def k_attn_qkv_bwd(
    dx: Array,
    dw_q: Array,
    dw_k: Array,
    dw_v: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
) -> None:
    """Assign dx (N, C); add into dw_q, dw_k, dw_v (C, C)."""
    dx[:] = dq @ w_q.T + dk @ w_k.T + dv @ w_v.T
    dw_q += x.T @ dq
    dw_k += x.T @ dk
    dw_v += x.T @ dv


def k_attn_out_fwd(y: Array, x: Array, w: Array) -> None:
    """Assign y (N, C) from x (N, C) and w (C, C)."""
    np.matmul(x, w, out=y)


def k_attn_out_bwd(dx: Array, dw: Array, dy: Array, x: Array, w: Array) -> None:
    """Assign dx (N, C); add into dw (C, C)."""
    np.matmul(dy, w.T, out=dx)
    dw += x.T @ dy


def k_mlp_fwd(y: Array, h: Array, a: Array, x: Array, w_1: Array, w_2: Array) -> None:
    """Assign y (N, C), the pre-activation h (N, 4C), which backward needs, and a = gelu(h) (N, 4C), workspace."""
    np.matmul(x, w_1, out=h)
    a[:] = 0.5 * h * (1 + np.tanh(_gelu_inner(h)))
    np.matmul(a, w_2, out=y)


def k_mlp_bwd(
    dx: Array, dw_1: Array, dw_2: Array, a: Array, dh: Array, dy: Array, h: Array, x: Array, w_1: Array, w_2: Array
) -> None:
    """Assign dx (N, C) and the workspaces a, dh (N, 4C); add into dw_1 (C, 4C), dw_2 (4C, C)."""
    tanh = np.tanh(_gelu_inner(h))
    slope = GELU_SCALE * (1 + 3 * GELU_CUBE * h * h)
    a[:] = 0.5 * h * (1 + tanh)
    dh[:] = (dy @ w_2.T) * (0.5 * (1 + tanh) + 0.5 * h * (1 - tanh * tanh) * slope)
    np.matmul(dh, w_1.T, out=dx)
    dw_2 += a.T @ dy
    dw_1 += x.T @ dh


def k_residual_add(out: Array, a: Array, b: Array) -> None:
    """Assign out (N, C) = a + b; out may be a."""
    np.add(a, b, out=out)


def k_residual_add_bwd(da: Array, db: Array, dout: Array) -> None:
    """Assign da, db (N, C) = dout. Either may be dout itself: a sum hands its gradient on as it is."""
    for target in (da, db):
        if target is not dout:
            target[:] = dout


def _gelu_inner(h: Array) -> Array:
    return GELU_SCALE * (h + GELU_CUBE * h * h * h)
