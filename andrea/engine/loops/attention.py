"""Causal attention, one head at a time and TILE queries at a time; products of tiles by the BLAS.

A head's queries, keys and values are copied together first: its rows lie C apart, which costs a cache line and a
page each. Formulas and contracts: andrea.engine.reference.attention.
"""

from typing import Any

import numpy as np
from numba import njit

from andrea.engine.kernels import ATTENTION_TILE
from andrea.engine.loops.heads import clear, gather, gather_transposed, scatter
from andrea.engine.loops.lanes import row_dot, row_max, row_sum
from andrea.engine.loops.maths import LOOP, exp32, f32
from andrea.engine.loops.products import ITEM, PLAIN, ROW_MAJOR, TRANSPOSED, sgemm

TILE = ATTENTION_TILE
KEYS_TIMES_D = 8192  # keys of one product: as many as the small kernels of some BLAS cores take with TILE queries


@njit(**LOOP)
def key_step(d: Any) -> Any:
    """Keys of one product; at most TILE * 4, which the workspace is made for."""
    return max(16, min(4 * TILE, KEYS_TIMES_D // d))


@njit(**LOOP)
def k_attn_fwd(out: Any, lse: Any, q: Any, k: Any, v: Any, work: Any) -> None:
    """See the reference."""
    batch, length, width = q.shape
    heads = lse.shape[1]
    d = width // heads
    size = length * d
    q_head = work[:size].reshape(length, d)
    v_head = work[size : 2 * size].reshape(length, d)
    k_head = work[2 * size : 3 * size].reshape(d, length)
    o = work[3 * size : 3 * size + TILE * d].reshape(TILE, d)
    s = work[3 * size + TILE * d : 3 * size + TILE * (d + length)].reshape(TILE, length)
    for b in range(batch):
        for h in range(heads):
            gather(q_head, q[b], h * d, f32(1 / np.sqrt(d)))
            gather(v_head, v[b], h * d, f32(1))
            gather_transposed(k_head, k[b], h * d)
            for first in range(0, length, TILE):
                rows = min(TILE, length - first)
                scores(s, q_head, k_head, first, rows)
                for i in range(rows):
                    lse[b, h, first + i] = softmax(s[i], first + i + 1, first + rows)
                mix(o, s, v_head, rows, first + rows)
                for i in range(rows):
                    for j in range(d):
                        out[b, first + i, h * d + j] = o[i, j]


@njit(**LOOP)
def scores(s: Any, q: Any, k: Any, first: Any, rows: Any) -> None:
    """s[:rows, :first + rows] = q[first : first + rows] k with q (T, D), k (D, T)."""
    length, d = q.shape
    keys = key_step(d)
    for start in range(0, first + rows, keys):
        n = min(keys, first + rows - start)
        a, b, c = q.ctypes.data + ITEM * first * d, k.ctypes.data + ITEM * start, s.ctypes.data + ITEM * start
        sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, n, d, f32(1), a, d, b, length, f32(0), c, length)


@njit(**LOOP)
def softmax(row: Any, seen: Any, keys: Any) -> Any:
    """row[:seen] becomes its softmax, row[seen:keys] zero; returns the log-sum-exp."""
    top = row_max(row.ctypes.data, seen)
    for j in range(seen):
        row[j] = exp32(row[j] - top)
    total = row_sum(row.ctypes.data, seen)
    inverse = f32(1) / total
    for j in range(seen):
        row[j] *= inverse
    for j in range(seen, keys):
        row[j] = f32(0)
    return top + np.log(total)


@njit(**LOOP)
def mix(o: Any, s: Any, v: Any, rows: Any, keys: Any) -> None:
    """o[:rows] = s[:rows, :keys] v[:keys] with v (T, D)."""
    length, d = v.shape
    step = key_step(d)
    for start in range(0, keys, step):
        n = min(step, keys - start)
        a, b = s.ctypes.data + ITEM * start, v.ctypes.data + ITEM * start * d
        sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, d, n, f32(1), a, length, b, d, f32(start > 0), o.ctypes.data, d)


@njit(**LOOP)
def k_attn_bwd(dq: Any, dk: Any, dv: Any, dout: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, work: Any) -> None:
    """See the reference."""
    batch, length, width = q.shape
    heads = lse.shape[1]
    d = width // heads
    size = length * d
    rows_of = work[: 6 * size].reshape(6, length, d)
    q_head, k_head, do_head = rows_of[0], rows_of[1], rows_of[2]
    dq_head, dk_head, dv_head = rows_of[3], rows_of[4], rows_of[5]
    columns_of = work[6 * size : 8 * size].reshape(2, d, length)
    tile = TILE * key_step(d)
    p, ds = work[8 * size : 8 * size + tile], work[8 * size + tile : 8 * size + 2 * tile]
    scale = f32(1 / np.sqrt(d))
    for b in range(batch):
        for h in range(heads):
            gather(q_head, q[b], h * d, scale)
            gather(k_head, k[b], h * d, f32(1))
            gather(do_head, dout[b], h * d, f32(1))
            gather_transposed(columns_of[0], k[b], h * d)
            gather_transposed(columns_of[1], v[b], h * d)
            clear(dk_head)
            clear(dv_head)
            for first in range(0, length, TILE):
                rows = min(TILE, length - first)
                for start in range(0, first + rows, key_step(d)):
                    n = min(key_step(d), first + rows - start)
                    two_products(p, ds, q_head, do_head, columns_of, first, rows, start, n)
                    for i in range(rows):
                        t = first + i
                        delta = row_dot(
                            do_head[t].ctypes.data, out.ctypes.data + ITEM * ((b * length + t) * width + h * d), d
                        )
                        slopes(
                            p[i * n : (i + 1) * n], ds[i * n : (i + 1) * n], min(n, t + 1 - start), lse[b, h, t], delta
                        )
                    three_products(rows_of, p, ds, first, rows, start, n, scale)
            scatter(dq[b], h * d, dq_head)
            scatter(dk[b], h * d, dk_head)
            scatter(dv[b], h * d, dv_head)


@njit(**LOOP)
def two_products(p: Any, ds: Any, q: Any, do: Any, columns_of: Any, first: Any, rows: Any, start: Any, n: Any) -> None:
    """p (rows, n) = q k' and ds (rows, n) = do v' for one tile."""
    length, d = q.shape
    at = ITEM * first * d
    k, v = columns_of[0].ctypes.data + ITEM * start, columns_of[1].ctypes.data + ITEM * start
    sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, n, d, f32(1), q.ctypes.data + at, d, k, length, f32(0), p.ctypes.data, n)
    sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, n, d, f32(1), do.ctypes.data + at, d, v, length, f32(0), ds.ctypes.data, n)


@njit(**LOOP)
def slopes(p: Any, ds: Any, seen: Any, lse: Any, delta: Any) -> None:
    """p becomes exp(p - lse), ds becomes p (ds - delta); both zero from `seen` on, which may be 0 or less."""
    for j in range(seen):
        p[j] = exp32(p[j] - lse)
        ds[j] = p[j] * (ds[j] - delta)
    for j in range(max(seen, 0), len(p)):
        p[j] = f32(0)
        ds[j] = f32(0)


@njit(**LOOP)
def three_products(rows_of: Any, p: Any, ds: Any, first: Any, rows: Any, start: Any, n: Any, scale: Any) -> None:
    """dv += p' do, dk += ds' q, dq = or += scale ds k for one tile; q is already scaled."""
    d = rows_of.shape[2]
    q, k, do = rows_of[0, first].ctypes.data, rows_of[1, start].ctypes.data, rows_of[2, first].ctypes.data
    dq, dk, dv = rows_of[3, first].ctypes.data, rows_of[4, start].ctypes.data, rows_of[5, start].ctypes.data
    sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, n, d, rows, f32(1), p.ctypes.data, n, do, d, f32(1), dv, d)
    sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, n, d, rows, f32(1), ds.ctypes.data, n, q, d, f32(1), dk, d)
    sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, d, n, scale, ds.ctypes.data, n, k, d, f32(start > 0), dq, d)
