"""Comparisons that a NaN cannot pass, and gradients by central differences."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def assert_close(got: Array, want: Array, *, atol: float, rtol: float, what: str) -> None:
    """Fail unless every element is within atol + rtol * |want|. NaN always fails, infinities must be equal."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    with np.errstate(invalid="ignore"):
        near = np.isfinite(want) & (np.abs(got - want) <= atol + rtol * np.abs(want))
    wrong = np.argwhere(~(near | (got == want)))
    if len(wrong):
        i = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: {len(wrong)} of {want.size} outside tolerance, first at {i}: got {got[i]}, expected {want[i]}"
        )


def assert_measured(got: Array, low: Array, exact: Array, *, what: str, factor: float = 2.0) -> None:
    """`got` is as near to the float64 result as plain float32 arithmetic is, times `factor` and a few ulps.

    low: the twin's float32 result, exact: the twin's float64 result.
    """
    exact = np.asarray(exact, np.float64)
    error = np.abs(np.asarray(low, np.float64) - exact).max(initial=0.0)
    ulps = 8 * np.finfo(np.float32).eps * np.abs(exact).max(initial=0.0)
    assert_close(got, exact, atol=factor * error + ulps, rtol=0, what=what)


def numeric_gradient(loss: Callable[[], float], x: Array, step: float = 1e-5) -> Array:
    """d loss / d x by central differences; x (float64) is changed in place and put back."""
    gradient = np.zeros_like(x)
    flat, out = x.reshape(-1), gradient.reshape(-1)
    for i in range(flat.size):
        before = flat[i]
        flat[i] = before + step
        above = loss()
        flat[i] = before - step
        below = loss()
        flat[i] = before
        out[i] = (above - below) / (2 * step)
    return gradient


def assert_gradient(got: Array, want: Array, *, what: str, relative: float = 1e-6) -> None:
    """Every element within `relative` of the largest; where all are zero, within what rounding leaves."""
    assert_close(got, want, atol=relative * float(np.abs(want).max()) + 1e-12, rtol=0, what=what)


def normal(seed: int, *shape: int, dtype: str = "float64", scale: float = 1.0, centre: float = 0.0) -> Array:
    """Fixed random numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale + centre).astype(dtype)
