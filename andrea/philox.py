"""Random numbers without hidden state: a Philox stream for each (seed, purpose, counters).

Whoever needs random numbers names the purpose and the place ("window", 17), and gets the same numbers in a
resumed run as in an undisturbed one. Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


class _Words(ISeedSequence):
    """Hands Philox its two key words. Its own argument `key` does too, and reads the system's entropy beside it."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        assert (n_words, dtype) == (self._words.size, np.uint64), "Philox takes two words of 64 bits"
        return self._words


def generator(seed: int, purpose: str, *counters: int | str) -> np.random.Generator:
    """A generator keyed by blake2b of its arguments; equal arguments give equal streams."""
    name = "\0".join([str(seed), purpose, *map(str, counters)]).encode()
    words = np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), "<u8")
    return np.random.Generator(np.random.Philox(_Words(words)))  # type: ignore[arg-type]  # any ISeedSequence
