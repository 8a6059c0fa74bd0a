"""Token and position embedding.

forward   x[b t] = wte[ids[b, t]] + wpe[t]
backward  dwte[ids[b, t]] += dx[b t]        dwpe[t] += sum over b of dx[b t]
"""

import numpy as np

from andrea.engine.kernels import Array


def k_embed_fwd(x: Array, ids: Array, wte: Array, wpe: Array) -> None:
    """Assign x (N, C) from ids (B, T) int32, wte (V, C), wpe (context, C) with context >= T."""
    b, t = ids.shape
    x[:] = wte[ids.reshape(-1)]
    x.reshape(b, t, -1)[:] += wpe[:t]


def k_embed_bwd(dwte: Array, dwpe: Array, dx: Array, ids: Array) -> None:
    """Add into dwte (V, C) and dwpe (context, C), rows in their order."""
    b, t = ids.shape
    np.add.at(dwte, ids.reshape(-1), dx)
    dwpe[:t] += dx.reshape(b, t, -1).sum(axis=0)
