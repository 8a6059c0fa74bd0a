"""Float32 functions that LLVM turns into vector code: exp and the logistic function."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# no checks for division by zero (they keep loops from becoming vectors), no GIL, and never fastmath
LOOP = {"cache": True, "nogil": True, "error_model": "numpy"}

f32 = np.float32
LOG2_E = f32(1.44269504)
LN2_HIGH = f32(0.693359375)  # ln 2 in two parts, so that n LN2_HIGH is exact
LN2_LOW = f32(-2.12194440e-4)
EXP_LEAST = f32(-87.0)
EXP_MOST = f32(88.0)
# Cephes expf (Moshier 1989): exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / 2
E5, E4, E3, E2, E1, E0 = map(
    f32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
ONE = f32(1)
HALF = f32(0.5)


@intrinsic
def fma(_typing: Any, _x: Any, _y: Any, _z: Any) -> Any:
    """x y + z in float32, with one rounding where the processor can."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.fmuladd.f32"), args)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def float_of_bits(_typing: Any, _bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(**LOOP)
def exp32(x: Any) -> Any:
    """exp(x) to 2 units in the last place; x is held within what float32 can hold, NaN stays NaN."""
    held = EXP_LEAST if x < EXP_LEAST else x
    held = EXP_MOST if held > EXP_MOST else held
    n = np.floor(fma(held, LOG2_E, HALF))
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, held))
    p = fma(fma(fma(fma(fma(E5, r, E4), r, E3), r, E2), r, E1), r, E0)
    return (fma(p, r * r, r) + ONE) * float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(**LOOP)
def logistic32(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return ONE / (ONE + exp32(-x))
