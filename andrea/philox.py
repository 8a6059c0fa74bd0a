"""Random numbers without hidden state: a Philox stream for each (seed, purpose, counters).

Whoever needs random numbers names the purpose and the place ("window", 17), and gets the same numbers in a
resumed run as in an undisturbed one. Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *counters: int | str) -> np.random.Generator:
    """A generator keyed by blake2b of its arguments; equal arguments give equal streams."""
    name = "\0".join([str(seed), purpose, *map(str, counters)]).encode()
    key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
