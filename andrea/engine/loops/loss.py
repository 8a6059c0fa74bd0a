"""The head and cross-entropy. Formulas and contracts: andrea.engine.reference.loss."""

from typing import Any

import numpy as np
from numba import njit

from andrea.engine.loops.lanes import row_max, row_sum
from andrea.engine.loops.maths import LOOP, exp32, f32
from andrea.engine.loops.products import add_transposed_times, times, times_transposed


@njit(**LOOP)
def k_loss_fwd(losses: Any, total: Any, logits: Any, x: Any, head: Any, targets: Any) -> None:
    """See the reference."""
    times_transposed(logits, x, head, f32(0))
    rows, vocabulary = logits.shape
    for n in range(rows):
        row = logits[n]
        top = row_max(row.ctypes.data, vocabulary)
        wanted = row[targets[n]] - top
        for j in range(vocabulary):
            row[j] = exp32(row[j] - top)
        total[n] = row_sum(row.ctypes.data, vocabulary)
        losses[n] = np.log(total[n]) - wanted


@njit(**LOOP)
def k_loss_bwd(dx: Any, dhead: Any, logits: Any, total: Any, x: Any, head: Any, targets: Any, scale: float) -> None:
    """See the reference."""
    for n in range(len(total)):
        row = logits[n]
        share = f32(scale) / total[n]
        for j in range(len(row)):
            row[j] *= share
        row[targets[n]] -= f32(scale)
    times(dx, logits, head, f32(0))
    add_transposed_times(dhead, logits, x)
