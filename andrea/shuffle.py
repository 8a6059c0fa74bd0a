"""A shuffled order of n things in constant memory: any place of the order is computed by itself.

A Feistel network over Z_a x Z_a, a = ceil(sqrt(n)), is a bijection of the a*a >= n numbers (L, R); numbers that fall
outside n are sent through again until they fall inside (cycle walking: Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"). Six rounds leave no visible pattern; an affine map i -> (a*i + b) mod n does.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
FEW = 12  # things that are quicker one by one than as arrays
_WORD = (1 << 64) - 1
_INT_1, _INT_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64's finaliser
_MIX_1, _MIX_2 = np.uint64(_INT_1), np.uint64(_INT_2)
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
    while outside.size > FEW:
        things[outside] = _feistel(things[outside], side[outside], keys[:, outside])
        outside = outside[things[outside] >= size[outside]]
    for i in outside.tolist():
        things[i] = _walk(int(things[i]), int(side[i]), int(size[i]), keys[:, i].tolist())
    return things.astype(np.int64)


def _walk(thing: int, side: int, size: int, keys: list[int]) -> int:
    """Send one thing through again until it is inside: as `_feistel`, in plain numbers, which are quicker for a few."""
    while thing >= size:
        left, right = divmod(thing, side)
        for key in keys:
            x = right ^ key
            x = (x ^ x >> 30) * _INT_1 & _WORD
            x = (x ^ x >> 27) * _INT_2 & _WORD
            left, right = right, (left + (x ^ x >> 31) % side) % side
        thing = left * side + right
    return thing


def _feistel(values: NDArray[np.uint64], side: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = np.divmod(values, side)
    for key in keys:
        mixed = _mix(right ^ key)
        mixed %= side
        mixed += left
        mixed %= side
        left, right = right, mixed
    return left * side + right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """x is overwritten; a window is shuffled at its start, while the card waits."""
    x ^= x >> _SHIFT_1
    x *= _MIX_1  # wraps around on purpose
    x ^= x >> _SHIFT_2
    x *= _MIX_2
    x ^= x >> _SHIFT_3
    return x
