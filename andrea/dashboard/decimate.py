"""Curves of bounded size. Of many points in one pixel column the lowest and the highest stay, so that peaks survive."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def extremes(x: Steps, y: Floats, bins: int) -> tuple[Steps, Floats]:
    """(n,) points in order of x -> the lowest and the highest of each of `bins` runs of equal length, in that order.

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
    both = np.concatenate([starts + padded.argmin(axis=1), starts + padded.argmax(axis=1)])
    kept = np.unique(np.minimum(both, len(y) - 1))
    return x[kept], y[kept]


def running_means(y: Floats, first: int, last: int, bins: int, width: int) -> tuple[Steps, Floats]:
    """Mean over the last `width` values at about `bins` places first..last, 1-based: (k,) places and means.

    Before there are `width` values, of those that there are; NaN counts as absent.
    """
    places = np.unique(np.linspace(first, last, min(bins, last - first + 1)).astype(np.int64))
    low = max(0, first - width)
    part = y[low:last]
    known = np.isfinite(part)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, part, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends, begins = places - low, np.maximum(places - low - width, 0)
    number = counts[ends] - counts[begins]
    some = number > 0
    return places[some], (sums[ends] - sums[begins])[some] / number[some]
