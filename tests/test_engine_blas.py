"""NumPy's BLAS by address, and the way round when it has none."""

import ctypes

import numpy as np
import pytest
from compare import assert_close, normal

from andrea.engine import blas
from andrea.engine.loops.products import PLAIN, TRANSPOSED


def address(x: np.ndarray) -> int:
    return int(x.ctypes.data)


@pytest.mark.parametrize("left", [PLAIN, TRANSPOSED])
@pytest.mark.parametrize("right", [PLAIN, TRANSPOSED])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_numpy_stands_in_for_cblas(left: int, right: int, beta: float) -> None:
    """Guards the substitute on libraries without cblas symbols: strides, transposes, alpha and beta as in cblas."""
    m, n, k, pad = 3, 5, 4, 2
    a = normal(1, *((m, k + pad) if left == PLAIN else (k, m + pad)), dtype="float32")
    b = normal(2, *((k, n + pad) if right == PLAIN else (n, k + pad)), dtype="float32")
    c = normal(3, m, n + pad, dtype="float32")
    x = a[:, :k] if left == PLAIN else a[:, :m].T
    y = b[:, :n] if right == PLAIN else b[:, :k].T
    want = np.concatenate([0.5 * (x @ y) + (c[:, :n] if beta else 0), c[:, n:]], axis=1)
    if not beta:
        c[:, :n] = np.nan  # beta 0 must not read what is there
    sizes = (m, n, k)
    places = (address(a), a.shape[1], address(b), b.shape[1])
    blas._numpy_sgemm(101, left, right, *sizes, 0.5, *places, beta, address(c), c.shape[1])
    assert_close(c, want, atol=1e-6, rtol=1e-6, what="c")


def test_library_is_found() -> None:
    """Guards the fast path on this platform: NumPy's wheels have a cblas_sgemm, and it is the one that is called."""
    found = blas._library_sgemm()
    if found is None:
        assert "slower" in blas.describe()
        pytest.skip("this NumPy has no cblas_sgemm that can be found")
    call = blas._SGEMM(found)
    a, b, c = normal(1, 2, 3, dtype="float32"), normal(2, 3, 4, dtype="float32"), np.empty((2, 4), np.float32)
    call(101, PLAIN, PLAIN, 2, 4, 3, 1.0, address(a), 3, address(b), 4, 0.0, address(c), 4)
    assert_close(c, a @ b, atol=1e-6, rtol=1e-6, what="c")
    assert isinstance(ctypes.cast(call, ctypes.c_void_p).value, int)


def test_one_thread() -> None:
    """Guards against threads within threads."""
    with blas.one_thread():
        assert all(info["num_threads"] == 1 for info in blas._controller().info())
