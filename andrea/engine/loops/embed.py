"""Token and position embedding. Formulas and contracts: andrea.engine.reference.embed."""

from typing import Any

from numba import njit

from andrea.engine.loops.maths import LOOP


@njit(**LOOP)
def k_embed_fwd(x: Any, ids: Any, wte: Any, wpe: Any) -> None:
    """See the reference."""
    batch, length = ids.shape
    for b in range(batch):
        for t in range(length):
            row, token, place = x[b * length + t], wte[ids[b, t]], wpe[t]
            for c in range(len(row)):
                row[c] = token[c] + place[c]


@njit(**LOOP)
def k_embed_bwd(dwte: Any, dwpe: Any, dx: Any, ids: Any) -> None:
    """See the reference."""
    batch, length = ids.shape
    for b in range(batch):
        for t in range(length):
            row, token, place = dx[b * length + t], dwte[ids[b, t]], dwpe[t]
            for c in range(len(row)):
                token[c] += row[c]
                place[c] += row[c]
