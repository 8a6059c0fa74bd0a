"""A shuffled order of n things in constant memory: any place of the order is computed by itself.

A Feistel network over Z_a x Z_a, a = ceil(sqrt(n)), is a bijection of the a*a >= n numbers (L, R); numbers that fall
outside n are sent through again until they fall inside (cycle walking: Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"). Six rounds leave no visible pattern; an affine map i -> (a*i + b) mod n does.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64's finaliser
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def round_keys(seed: int, source: str, epoch: int) -> NDArray[np.uint64]:
    """(ROUNDS,) keys of one source's epoch."""
    name = f"{seed}\0{source}\0{epoch}".encode()
    return np.frombuffer(hashlib.blake2b(name, digest_size=8 * ROUNDS, person=b"andrea-blocks").digest(), "<u8")


def shuffled(places: NDArray[np.int64], n: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(k,) places -> (k,) things. Place i is one of n[i] (below 2**50), under the keys keys[:, i].

    Among places of equal n and keys it is a bijection of 0..n-1.
    """
    size = n.astype(np.uint64)
    side = np.ceil(np.sqrt(n)).astype(np.uint64)
    things = _feistel(places.astype(np.uint64), side, keys)
    outside = np.flatnonzero(things >= size)
    while outside.size:
        things[outside] = _feistel(things[outside], side[outside], keys[:, outside])
        outside = outside[things[outside] >= size[outside]]
    return things.astype(np.int64)


def _feistel(values: NDArray[np.uint64], side: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = values // side, values % side
    for key in keys:
        left, right = right, (left + _mix(right ^ key) % side) % side
    return left * side + right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> _SHIFT_1)) * _MIX_1  # wraps around on purpose
    x = (x ^ (x >> _SHIFT_2)) * _MIX_2
    return x ^ (x >> _SHIFT_3)
