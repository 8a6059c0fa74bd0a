"""Documents as bytes -> token ids: what the workers run.

Harris is greedy longest match: one compiled expression (pattern.py) cuts the bytes, a dictionary gives the ids. It takes
any bytes. BPE goes through the `tokenizers` library and takes UTF-8.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from andrea.tokenizer import bpe
from andrea.tokenizer.exported import Learned
from andrea.tokenizer.ids import BOS, BYTES, FIRST_SEGMENT
from andrea.tokenizer.pattern import bytes_pattern

Ids = NDArray[np.uint16] | NDArray[np.uint32]


class Batch(NamedTuple):
    """Ids of some documents, one behind the other, and how many each has (int64)."""

    ids: Ids
    sizes: NDArray[np.int64]


Encoder = Callable[[Sequence[bytes], bool], Batch]  # documents, and whether each gets BOS in front


def make_encoder(learned: Learned) -> Encoder:
    return _harris(learned.segments) if learned.kind == "harris" else _bpe(learned)


def id_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest type for ids below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def _harris(segments: Sequence[bytes]) -> Encoder:
    find = bytes_pattern(segments).findall
    ids = {bytes([byte]): byte for byte in range(BYTES)} | {b"": BOS}
    ids |= {segment: FIRST_SEGMENT + n for n, segment in enumerate(segments)}
    dtype = id_type(len(ids))

    def encode(documents: Sequence[bytes], bos: bool) -> Batch:
        pieces: list[bytes] = []
        sizes = []
        for document in documents:
            before = len(pieces)
            if bos:
                pieces.append(b"")
            pieces += find(document)
            sizes.append(len(pieces) - before)
        return Batch(np.fromiter(map(ids.__getitem__, pieces), dtype, len(pieces)), np.array(sizes, np.int64))

    return encode


def _bpe(learned: Learned) -> Encoder:
    model = bpe.encoder(learned.document)
    dtype = id_type(FIRST_SEGMENT + len(learned.segments))

    def encode(documents: Sequence[bytes], bos: bool) -> Batch:
        ids: list[int] = []
        sizes = []
        for encoding in model.encode_batch_fast([document.decode() for document in documents]):
            before = len(ids)
            if bos:
                ids.append(BOS)
            ids += encoding.ids
            sizes.append(len(ids) - before)
        return Batch(np.array(ids, dtype), np.array(sizes, np.int64))

    return encode
