"""Matrix products inside compiled loops: the address of a sgemm, called without going back to Python.

Some cores have kernels in OpenBLAS for products of at most a million multiplications, which skip its packing and
run at the processor's peak (measured on SkylakeX kernels: 115 against 102 GFLOP/s). There a large product is cut
into such blocks here, the right-hand block copied together once. The cut depends on sizes and core type only.
"""

from typing import Any

import numba
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from andrea.engine.blas import SYMBOL, has_small_kernels, register
from andrea.engine.loops.maths import LOOP, f32

register()

ROW_MAJOR = 101
PLAIN, TRANSPOSED = 111, 112
ITEM = 4  # bytes of a float32

BLOCKED = has_small_kernels()
ROWS, SIDE, SLACK = 48, 128, 16  # a block is ROWS x SIDE x SIDE; a remainder up to SLACK joins the last one
BLOCK = (SIDE + SLACK) ** 2
assert ROWS * BLOCK <= 1_000_000, "a block must be small enough for the small kernels"

# cblas_sgemm. All sizes are declared 64 bits wide: a library with 32-bit sizes reads the lower half of each.
sgemm = types.ExternalFunction(
    SYMBOL,
    types.void(
        *[types.int64] * 6, types.float32, *[types.uintp, types.int64] * 2, types.float32, types.uintp, types.int64
    ),
)


@intrinsic
def stack_block(_typing: Any) -> Any:
    """Room for one block, on the stack of the caller."""

    def generate(_context: Any, b: Any, _signature: Any, _args: Any) -> Any:
        with b.goto_entry_block():  # a plain alloca: Numba's own helper would fill it with zeros
            room = b.alloca(ir.ArrayType(ir.FloatType(), BLOCK))
        room.align = 64
        return b.bitcast(room, ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(), generate


@njit(**LOOP)
def times(out: Any, x: Any, w: Any, beta: Any) -> None:
    """out (N, M) = beta out + x (N, K) w (K, M)."""
    n, k = x.shape
    product(out, PLAIN, x, PLAIN, w, n, w.shape[1], k, beta)


@njit(**LOOP)
def times_transposed(out: Any, x: Any, w: Any, beta: Any) -> None:
    """out (N, M) = beta out + x (N, K) w' with w (M, K)."""
    n, k = x.shape
    product(out, PLAIN, x, TRANSPOSED, w, n, w.shape[0], k, beta)


@njit(**LOOP)
def add_transposed_times(out: Any, x: Any, y: Any) -> None:
    """out (K, M) += x' y with x (N, K), y (N, M): a weight's gradient."""
    n, k = x.shape
    product(out, TRANSPOSED, x, PLAIN, y, k, y.shape[1], n, f32(1))


@njit(**LOOP)
def product(out: Any, left: Any, x: Any, right: Any, y: Any, n: Any, m: Any, k: Any, beta: Any) -> None:
    """out (n, m) = beta out + op(x) (n, k) op(y) (k, m), all stored in full rows."""
    ldx, ldy = x.shape[1], y.shape[1]
    if not BLOCKED or n < ROWS:
        a, b, c = x.ctypes.data, y.ctypes.data, out.ctypes.data
        sgemm(ROW_MAJOR, left, right, n, m, k, f32(1), a, ldx, b, ldy, beta, c, m)
        return
    block = numba.carray(stack_block(), (BLOCK,))
    first_m = 0
    while first_m < m:
        width = step(m - first_m)
        first_k = 0
        while first_k < k:
            depth = step(k - first_k)
            copy_block(block, right, y, first_k, depth, first_m, width)
            keep = beta if first_k == 0 else f32(1)
            for first_n in range(0, n, ROWS):
                at = first_n * ldx + first_k if left == PLAIN else first_k * ldx + first_n
                a, b, c = x.ctypes.data + ITEM * at, block.ctypes.data, out.ctypes.data + ITEM * (first_n * m + first_m)
                rows = min(ROWS, n - first_n)
                sgemm(ROW_MAJOR, left, PLAIN, rows, width, depth, f32(1), a, ldx, b, width, keep, c, m)
            first_k += depth
        first_m += width


@njit(**LOOP)
def step(left: Any) -> Any:
    """The size of the next block when so much is left."""
    return left if left <= SIDE + SLACK else SIDE


@njit(**LOOP)
def copy_block(block: Any, right: Any, y: Any, first_k: Any, depth: Any, first_m: Any, width: Any) -> None:
    """block (depth, width) = the part of op(y) that starts at (first_k, first_m)."""
    if right == PLAIN:
        for i in range(depth):
            for j in range(width):
                block[i * width + j] = y[first_k + i, first_m + j]
    else:
        for j in range(width):
            for i in range(depth):
                block[i * width + j] = y[first_m + j, first_k + i]
