"""The exact set of documents that training has touched, one bit each: 512,000 documents are 64 kB.

As JSON it is base64 of the bits, document 0 in the lowest bit of the first byte, so that it round-trips exactly
and does not depend on a compression library.
"""

import base64
import binascii
from typing import Self

import numpy as np
from numpy.typing import NDArray

from andrea.errors import CheckpointError


class Coverage:
    """Which of `documents` documents have been seen."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        self.seen = 0
        self._bits = np.zeros(-(-documents // 8), np.uint8)

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Mark (k,) document numbers, each in 0..documents-1; repeats are fine."""
        if self.seen == self.documents:
            return
        numbers = np.unique(numbers)
        assert numbers.size == 0 or 0 <= numbers[0] <= numbers[-1] < self.documents, (numbers, self.documents)
        places, masks = numbers >> 3, np.uint8(1) << (numbers & 7).astype(np.uint8)
        self.seen += int(np.count_nonzero(self._bits[places] & masks == 0))
        np.bitwise_or.at(self._bits, places, masks)

    def share(self) -> float:
        """Documents seen / documents."""
        return self.seen / self.documents

    def to_text(self) -> str:
        return base64.b64encode(self._bits.tobytes()).decode()

    @classmethod
    def from_text(cls, text: str, documents: int, source: str) -> Self:
        """The inverse of `to_text`; CheckpointError when `text` cannot be `documents` bits."""
        coverage = cls(documents)
        try:
            bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
        except (binascii.Error, ValueError) as cause:
            raise _refusal(source, "base64", cause) from cause
        if bits.size != coverage._bits.size or (documents % 8 and bits.size and bits[-1] >> (documents % 8)):
            raise _refusal(source, f"{documents:,} bits", f"{bits.size:,} bytes")
        coverage._bits = bits.copy()
        coverage.seen = int(np.bitwise_count(bits).sum())
        return coverage


def _refusal(source: str, what: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"the firehose state of the source {source}: `seen` must be {what}",
        got=got,
        fix="the state belongs to other tokens or is damaged: go on from another checkpoint",
    )
