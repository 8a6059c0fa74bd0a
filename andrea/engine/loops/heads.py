"""Moving one head between its columns of a (T, C) matrix and rows of its own."""

from typing import Any

from numba import njit

from andrea.engine.loops.maths import LOOP, f32

STRIP = 16


@njit(**LOOP)
def gather(head: Any, x: Any, column: Any, scale: Any) -> None:
    """head (T, D) = scale x[:, column : column + D]."""
    length, d = head.shape
    for t in range(length):
        for i in range(d):
            head[t, i] = x[t, column + i] * scale


@njit(**LOOP)
def gather_transposed(head: Any, x: Any, column: Any) -> None:
    """head (D, T) = x[:, column : column + D]', STRIP rows of x at a time, which stay in the nearest cache."""
    d, length = head.shape
    whole = length // STRIP * STRIP
    for first in range(0, whole, STRIP):
        for i in range(d):
            for t in range(first, first + STRIP):
                head[i, t] = x[t, column + i]
    for t in range(whole, length):
        for i in range(d):
            head[i, t] = x[t, column + i]


@njit(**LOOP)
def scatter(x: Any, column: Any, head: Any) -> None:
    """x[:, column : column + D] = head (T, D)."""
    length, d = head.shape
    for t in range(length):
        for i in range(d):
            x[t, column + i] = head[t, i]


@njit(**LOOP)
def clear(head: Any) -> None:
    """head (T, D) = 0."""
    length, d = head.shape
    for t in range(length):
        for i in range(d):
            head[t, i] = f32(0)
