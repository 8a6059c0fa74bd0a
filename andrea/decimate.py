"""Curves of bounded size. Of many points in one pixel column the lowest and the highest stay, so that peaks survive."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def extremes(x: Steps, y: Floats, bins: int) -> tuple[Steps, Floats]:
    """(n,) points in order of x -> the lowest and the highest of each of `bins` runs of equal length, and both ends.

    All of them when they are 2 * bins or fewer. Points whose y is NaN are left out.
    """
    finite = np.isfinite(y)
    if not finite.all():
        x, y = x[finite], y[finite]
    if len(y) <= 2 * bins:
        return x, y
    width = -(-len(y) // bins)
    rows = -(-len(y) // width)
    padded = np.append(y, np.full(rows * width - len(y), y[-1])).reshape(rows, width)
    starts = np.arange(rows) * width
    both = np.concatenate([starts + padded.argmin(axis=1), starts + padded.argmax(axis=1), [0, len(y)]])
    kept = np.unique(np.minimum(both, len(y) - 1))
    return x[kept], y[kept]


def places(first: int, last: int, bins: int) -> Steps:
    """About `bins` places first..last at even distances, both ends among them."""
    return np.unique(np.linspace(first, last, min(bins, last - first + 1)).astype(np.int64))


def running_means(y: Floats, first: int, last: int, bins: int, width: int) -> tuple[Steps, Floats]:
    """Mean over the `width` values around each of `places`, which count from 1: (k,) places and means.

    Near the start as many before as behind, so that the mean of a falling loss lies among its points; at the end of y
    those that there are. NaN counts as absent.
    """
    middles = places(first, last, bins)
    left = np.minimum(width // 2, middles - 1)
    begins, ends = middles - 1 - left, np.minimum(middles + np.minimum((width - 1) // 2, left), len(y))
    low = int(begins[0])
    part = y[low : int(ends[-1])]
    known = np.isfinite(part)
    counts = None if known.all() else np.concatenate([[0], np.cumsum(known)])
    sums = np.concatenate([[0.0], np.cumsum(part if counts is None else np.where(known, part, 0.0))])
    number = ends - begins if counts is None else counts[ends - low] - counts[begins - low]
    some = number > 0
    return middles[some], (sums[ends - low] - sums[begins - low])[some] / number[some]
