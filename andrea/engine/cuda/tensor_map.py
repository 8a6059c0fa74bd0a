"""Maps of matrices for Hopper's copy engine, encoded by the driver through ctypes: 128 bytes that say where a matrix lies,
how long its rows are and which box of it a copy takes. Kernels read them from device memory; see kernels/tma.cuh.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.tensor import Tensor
from andrea.errors import EngineError

WORDS = 32  # int32 of one map
COLUMNS = 64  # of a box: 128 bytes of 16-bit numbers, what the swizzle permutes
ALIGN = 64  # bytes
_TYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _PROMOTE_256 = 3, 3


def encode(matrix: Tensor, box_rows: int) -> NDArray[np.int32]:
    """(WORDS,) int32 for a 16-bit (rows, columns) matrix whose boxes have `box_rows` rows of COLUMNS columns."""
    rows, columns = matrix.shape
    words = np.zeros(2 * WORDS, np.int32)
    first = -words.ctypes.data % ALIGN // 4
    encoded = words[first : first + WORDS]
    code = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(encoded.ctypes.data), _TYPES[matrix.dtype], 2, ctypes.c_void_p(matrix.address),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * matrix.itemsize),
        (ctypes.c_uint32 * 2)(COLUMNS, box_rows), (ctypes.c_uint32 * 2)(1, 1), 0, _SWIZZLE_128, _PROMOTE_256, 0,
    )  # fmt: skip
    if code:
        raise EngineError(f"the driver must encode a map of {matrix}", got=f"status {code}", fix="run `andrea doctor`")
    return encoded.copy()


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as cause:
        raise EngineError("the NVIDIA driver must load", got=cause, fix="run `andrea doctor`") from cause
