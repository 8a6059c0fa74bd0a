"""The matrix ops of a block, and the residual sum. Formulas and contracts: andrea.engine.reference.matrix."""

from typing import Any

from numba import njit

from andrea.engine.loops.maths import LOOP, f32, logistic32
from andrea.engine.loops.products import add_transposed_times, times, times_transposed
from andrea.engine.reference.matrix import GELU_CUBE, GELU_SCALE

# gelu(h) = h logistic(2 u), the same as h (1 + tanh(u)) / 2, with u = GELU_SCALE (h + GELU_CUBE h^3)
ZERO, ONE = f32(0), f32(1)
LINEAR, CUBIC = f32(2 * GELU_SCALE), f32(2 * GELU_SCALE * GELU_CUBE)


@njit(**LOOP)
def k_attn_qkv_fwd(q: Any, k: Any, v: Any, x: Any, w_q: Any, w_k: Any, w_v: Any) -> None:
    """See the reference."""
    times(q, x, w_q, ZERO)
    times(k, x, w_k, ZERO)
    times(v, x, w_v, ZERO)


@njit(**LOOP)
def k_attn_qkv_bwd(
    dx: Any, dw_q: Any, dw_k: Any, dw_v: Any, dq: Any, dk: Any, dv: Any, x: Any, w_q: Any, w_k: Any, w_v: Any
) -> None:
    """See the reference."""
    times_transposed(dx, dq, w_q, ZERO)
    times_transposed(dx, dk, w_k, ONE)
    times_transposed(dx, dv, w_v, ONE)
    add_transposed_times(dw_q, x, dq)
    add_transposed_times(dw_k, x, dk)
    add_transposed_times(dw_v, x, dv)


@njit(**LOOP)
def k_attn_out_fwd(y: Any, x: Any, w: Any) -> None:
    """See the reference."""
    times(y, x, w, ZERO)


@njit(**LOOP)
def k_attn_out_bwd(dx: Any, dw: Any, dy: Any, x: Any, w: Any) -> None:
    """See the reference."""
    times_transposed(dx, dy, w, ZERO)
    add_transposed_times(dw, x, dy)


@njit(**LOOP)
def k_mlp_fwd(y: Any, h: Any, a: Any, x: Any, w_1: Any, w_2: Any) -> None:
    """See the reference."""
    times(h, x, w_1, ZERO)
    gelu(a.reshape(-1), h.reshape(-1))
    times(y, a, w_2, ZERO)


@njit(**LOOP)
def k_mlp_bwd(dx: Any, dw_1: Any, dw_2: Any, a: Any, dh: Any, dy: Any, h: Any, x: Any, w_1: Any, w_2: Any) -> None:
    """See the reference."""
    times_transposed(dh, dy, w_2, ZERO)
    gelu_slope(a.reshape(-1), dh.reshape(-1), h.reshape(-1))
    times_transposed(dx, dh, w_1, ZERO)
    add_transposed_times(dw_2, a, dy)
    add_transposed_times(dw_1, x, dh)


@njit(**LOOP)
def gelu(a: Any, h: Any) -> None:
    """a = gelu(h), flat."""
    for i in range(len(h)):
        a[i] = h[i] * logistic32(h[i] * (LINEAR + CUBIC * h[i] * h[i]))


@njit(**LOOP)
def gelu_slope(a: Any, dh: Any, h: Any) -> None:
    """a = gelu(h) and dh *= gelu'(h), flat; both need the same exponential."""
    for i in range(len(h)):
        square = h[i] * h[i]
        gate = logistic32(h[i] * (LINEAR + CUBIC * square))
        a[i] = h[i] * gate
        dh[i] *= gate + a[i] * (f32(1) - gate) * (LINEAR + f32(3) * CUBIC * square)


@njit(**LOOP)
def k_residual_add(out: Any, a: Any, b: Any) -> None:
    """See the reference."""
    sums, x, y = out.reshape(-1), a.reshape(-1), b.reshape(-1)
    for i in range(len(sums)):
        sums[i] = x[i] + y[i]


@njit(**LOOP)
def k_residual_add_bwd(da: Any, db: Any, dout: Any) -> None:
    """See the reference."""
    copy_unless_same(da, dout)
    copy_unless_same(db, dout)


@njit(**LOOP)
def copy_unless_same(target: Any, source: Any) -> None:
    """target = source."""
    if target.ctypes.data == source.ctypes.data:
        return
    to, x = target.reshape(-1), source.reshape(-1)
    for i in range(len(to)):
        to[i] = x[i]
