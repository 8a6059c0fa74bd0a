"""Causal scaled dot-product attention, by head and query tile: the (T, T) matrix never exists.

forward   s = q k' / sqrt(D), masked above the diagonal     p = exp(s - lse)     o = p v
backward  dv += p' do     ds = p (do v' - sum(do o)) / sqrt(D)     dq += ds k     dk += ds' q

The log-sum-exp of each row is saved, p is made again from it (Dao et al. 2022, FlashAttention).
"""

from collections.abc import Iterator

import numpy as np

from andrea.engine.kernels import ATTENTION_TILE, Array


def k_attn_fwd(out: Array, lse: Array, q: Array, k: Array, v: Array, work: Array) -> None:
    """Assign out (B, T, C) and lse (B, H, T) from q, k, v (B, T, C); the head width is C / H.

    work is flat, attention_work(T, D) numbers; its content does not matter.
    """
    for b, h, head, rows, keys in _tiles(lse.shape, q.shape[2]):
        s = _scores(q[b, rows, head], k[b, keys, head], rows, work)
        top = s.max(axis=1, keepdims=True)
        p = np.exp(s - top)
        total = p.sum(axis=1, keepdims=True)
        out[b, rows, head] = (p @ v[b, keys, head]) / total
        lse[b, h, rows] = (top + np.log(total))[:, 0]


def k_attn_bwd(
    dq: Array, dk: Array, dv: Array, dout: Array, out: Array, lse: Array, q: Array, k: Array, v: Array, work: Array
) -> None:
    """Assign dq, dk, dv (B, T, C)."""
    dk[:] = 0
    dv[:] = 0
    for b, h, head, rows, keys in _tiles(lse.shape, q.shape[2]):
        q_tile, k_tile, do = q[b, rows, head], k[b, keys, head], dout[b, rows, head]
        p = np.exp(_scores(q_tile, k_tile, rows, work) - lse[b, h, rows][:, None])
        delta = (do * out[b, rows, head]).sum(axis=1, keepdims=True)
        ds = p * (do @ v[b, keys, head].T - delta) * _scale(q_tile)
        dq[b, rows, head] = ds @ k_tile
        dk[b, keys, head] += ds.T @ q_tile
        dv[b, keys, head] += p.T @ do


def _tiles(shape: tuple[int, ...], width: int) -> Iterator[tuple[int, int, slice, slice, slice]]:
    """(batch, head, the head's columns, query rows, the keys that these may see)."""
    batch, heads, length = shape
    d = width // heads
    for b in range(batch):
        for h in range(heads):
            for start in range(0, length, ATTENTION_TILE):
                stop = min(start + ATTENTION_TILE, length)
                yield b, h, slice(h * d, (h + 1) * d), slice(start, stop), slice(0, stop)


def _scores(q: Array, k: Array, rows: slice, work: Array) -> Array:
    s: Array = np.matmul(q, k.T, out=work[: len(q) * len(k)].reshape(len(q), len(k)))
    s *= _scale(q)
    later = np.arange(len(k))[None, :] > np.arange(rows.start, rows.stop)[:, None]
    s[later] = -np.inf
    return s


def _scale(q: Array) -> Array:
    scale: Array = q.dtype.type(1 / np.sqrt(q.shape[1]))
    return scale
