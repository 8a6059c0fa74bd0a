"""The exact sets of documents that training has touched, one bit each: 512,000 documents are 64 kB.

All arms stand in one array of bits, each from a byte of its own on, because a window adds to many arms at once.
As JSON an arm is base64 of its bits, document 0 in the lowest bit of the first byte, so that it round-trips exactly
and does not depend on a compression library.
"""

import base64
import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from andrea.errors import CheckpointError


class Coverage:
    """Which documents have been seen of arms with `documents` (K,) documents each."""

    def __init__(self, documents: Sequence[int]) -> None:
        self.documents = np.array(documents, np.int64)
        self.seen = np.zeros_like(self.documents)
        self._first = np.concatenate([[0], np.cumsum(-(-self.documents // 8))])  # byte where an arm begins
        self._bits = np.zeros(self._first[-1], np.uint8)

    def add(self, arms: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Mark document numbers[i] of arm arms[i], (k,) each, numbers in 0..documents-1; repeats are fine."""
        assert not ((numbers < 0) | (numbers >= self.documents[arms])).any(), "document out of range"
        places = 8 * self._first[arms] + numbers
        fresh = self._bits[places >> 3] >> (places & 7) & 1 == 0
        if not fresh.any():
            return
        places = np.sort(places[fresh])
        places = places[np.flatnonzero(np.diff(places, prepend=-1))]
        new = np.searchsorted(places, 8 * self._first)  # new places before each arm's first
        self.seen += np.diff(new)
        np.bitwise_or.at(self._bits, places >> 3, np.uint8(1) << (places & 7).astype(np.uint8))

    def shares(self) -> NDArray[np.float64]:
        """(K,) documents seen / documents."""
        return self.seen / self.documents

    def to_text(self, arm: int) -> str:
        return base64.b64encode(self._bits[self._first[arm] : self._first[arm + 1]].tobytes()).decode()

    def set_text(self, arm: int, text: str, source: str) -> None:
        """The inverse of `to_text`; CheckpointError when `text` cannot be the arm's bits."""
        try:
            bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
        except (binascii.Error, ValueError) as cause:
            raise _refusal(source, "base64", cause) from cause
        count = int(self.documents[arm])
        if bits.size != -(-count // 8) or (count % 8 and bits[-1] >> (count % 8)):
            raise _refusal(source, f"{count:,} bits", f"{bits.size:,} bytes")
        self._bits[self._first[arm] : self._first[arm + 1]] = bits
        self.seen[arm] = np.bitwise_count(bits).sum()


def _refusal(source: str, what: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"the firehose state of the source {source}: `seen` must be {what}",
        got=got,
        fix="the state belongs to other tokens or is damaged: go on from another checkpoint",
    )
