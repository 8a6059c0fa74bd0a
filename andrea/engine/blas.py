"""NumPy's own BLAS: which one it is, the address of its sgemm, and one thread for it while our threads share the work.

Compiled loops call the address under SYMBOL. Where the library has no cblas interface that can be found, the same
symbol leads to a function that calls NumPy: slower, the same loops, and `describe` says so.
"""

import ctypes
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import llvmlite.binding
import numpy as np
from threadpoolctl import ThreadpoolController

from andrea.engine.kernels import Array

SYMBOL = "andrea_sgemm"
# NumPy's wheels rename the symbols of their OpenBLAS; 64_ marks 64-bit sizes
NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm")
TRANSPOSED = 112
# core types for which OpenBLAS has kernels for small products
SMALL_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")

_SGEMM = ctypes.CFUNCTYPE(
    None,
    *[ctypes.c_int64] * 6,
    ctypes.c_float,
    *[ctypes.c_void_p, ctypes.c_int64] * 2,
    ctypes.c_float,
    ctypes.c_void_p,
    ctypes.c_int64,
)


@cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")


def one_thread() -> AbstractContextManager[Any]:
    """While it lasts the BLAS uses one thread a call."""
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit


def versions() -> dict[str, str]:
    """Name, version and core type of the library."""
    for info in _controller().info():
        return {
            "blas": f"{info['internal_api']} {info['version']}",
            "blas_core": str(info.get("architecture", "unknown")),
        }
    return {"blas": "unknown", "blas_core": "unknown"}


def describe() -> str:
    """For the line at the start."""
    found = " ".join(versions().values())
    return found if _library_sgemm() else f"{found} through NumPy (no cblas_sgemm found in it: slower)"


def has_small_kernels() -> bool:
    """Whether products of up to a million multiplications are faster than large ones."""
    return versions()["blas_core"] in SMALL_KERNELS and _library_sgemm() is not None


@cache
def register() -> None:
    """Make SYMBOL known to compiled code."""
    llvmlite.binding.add_symbol(SYMBOL, _library_sgemm() or ctypes.cast(_numpy_sgemm, ctypes.c_void_p).value)


@cache
def _library_sgemm() -> int | None:
    """The address of cblas_sgemm in the library that NumPy has loaded."""
    for info in _controller().info():
        library = ctypes.CDLL(info["filepath"])
        for name in NAMES:
            if hasattr(library, name):
                return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None


@_SGEMM
def _numpy_sgemm(
    _order: int,
    transpose_a: int,
    transpose_b: int,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: int,
    lda: int,
    b: int,
    ldb: int,
    beta: float,
    c: int,
    ldc: int,
) -> None:
    """c (m, n) = alpha op(a) op(b) + beta c, row-major, by np.matmul."""
    x = _matrix(a, k, m, lda).T if transpose_a == TRANSPOSED else _matrix(a, m, k, lda)
    y = _matrix(b, n, k, ldb).T if transpose_b == TRANSPOSED else _matrix(b, k, n, ldb)
    out = _matrix(c, m, n, ldc)
    product = np.matmul(x, y) * np.float32(alpha)
    out[:] = product + np.float32(beta) * out if beta else product


def _matrix(address: int, rows: int, columns: int, stride: int) -> Array:
    """float32 memory as a (rows, columns) view."""
    size = (rows - 1) * stride + columns
    flat = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4 * stride, 4))
