"""E4M3 in NumPy, from its definition: what the kernels' conversions are compared with."""

import numpy as np
from numpy.typing import NDArray

LARGEST = 448.0
NAN = 0x7F


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Codes to numbers: sign, 4 bits of exponent with bias 7, 3 of fraction; all ones is NaN, and there is no infinity."""
    codes = np.asarray(codes, np.int64)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.where(codes & 127 == NAN, np.nan, np.where(codes >= 128, -size, size))


def encode(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Numbers to codes: to the nearest, from halfway to the even code, 448 for what is larger, NaN for NaN."""
    values = np.asarray(values, np.float64)
    size, table = np.minimum(np.abs(values), LARGEST), decode(np.arange(NAN, dtype=np.uint8))
    above = np.minimum(np.searchsorted(table, size), NAN - 1)
    below = np.maximum(above - 1, 0)
    up, down = table[above] - size, size - table[below]
    codes = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below) | (np.signbit(values) << 7)
    return np.where(np.isnan(values), NAN, codes).astype(np.uint8)
