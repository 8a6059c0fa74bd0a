"""The token file (.btok): a header, the tokens of all documents one behind the other, then where each document starts.

Little-endian, 128 bytes of header:

    offset  0   8 bytes   magic "ANDREABT"
            8   uint32    version, 1
           12   uint32    bytes of a token: 2 (uint16) or 4 (uint32)
           16   uint64    vocabulary size
           24   uint64    documents
           32   uint64    tokens
           40   32 bytes  sha256 of the tokenizer.json
           72   56 bytes  zero

Then the tokens; zeros up to a multiple of 8; int64 offsets, one more than documents, in tokens.

Unusual: offsets stand last, so that a corpus of any size is written as it comes, in constant memory for tokens; the
header is filled in at the end, and the file appears under its name only then. Every document starts with BOS, and
BOS stands nowhere else. A file is believed only when all of that holds: opening reads it once, in pieces.
"""

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from andrea.errors import DataError
from andrea.files import atomic_file, require_file
from andrea.tokenizer.encoders import Ids, id_type
from andrea.tokenizer.ids import BOS, BYTES

MAGIC = b"ANDREABT"
VERSION = 1

_HEADER = struct.Struct("<8sIIQQQ32s56x")
_PIECE = 1 << 22  # tokens per piece of the check
_LITTLE = np.dtype("<i8")


class Counts(NamedTuple):
    documents: int
    tokens: int


@dataclass(frozen=True)
class Btok:
    """`tokens` (n_tokens,) memory-mapped uint16 or uint32; document d is tokens[offsets[d] : offsets[d + 1]]."""

    tokens: Ids
    offsets: NDArray[np.int64]
    vocab_size: int
    tokenizer_sha256: str


def write(path: str | Path, token_arrays: Iterable[Ids], *, vocab_size: int, tokenizer_sha256: str) -> Counts:
    """Write documents, each an array of ids that starts with BOS, as they come. The file appears whole or not at all.

    Raises StorageError when the disk refuses, and DataError for a document that is none or has ids of another
    vocabulary.
    """
    dtype = id_type(vocab_size).newbyteorder("<")
    offsets = array("q", [0])
    with atomic_file(path) as file:
        file.write(bytes(_HEADER.size))
        for ids in token_arrays:
            _check_document(Path(path), len(offsets), ids, vocab_size)
            file.write(np.ascontiguousarray(ids, dtype).tobytes())
            offsets.append(offsets[-1] + len(ids))
        counts = Counts(len(offsets) - 1, offsets[-1])
        file.write(bytes(-counts.tokens * dtype.itemsize % 8))
        file.write(np.frombuffer(offsets, np.int64).astype(_LITTLE).tobytes())
        file.seek(0)
        digest = bytes.fromhex(tokenizer_sha256)
        file.write(_HEADER.pack(MAGIC, VERSION, dtype.itemsize, vocab_size, counts.documents, counts.tokens, digest))
    return counts


def _check_document(path: Path, number: int, ids: Ids, vocab_size: int) -> None:
    if len(ids) == 0 or ids[0] != BOS or np.count_nonzero(ids == BOS) != 1 or int(ids.max()) >= vocab_size:
        raise DataError(
            f"{path}: document {number:,} must start with its only BOS ({BOS}) and have ids below {vocab_size:,}",
            got=f"{len(ids):,} ids: {ids[:8].tolist()}, largest {ids.max(initial=0)}",
            fix="encode it with the tokenizer that this file is for",
        )


# ---------------------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    magic: bytes
    version: int
    token_bytes: int
    vocab_size: int
    documents: int
    tokens: int
    sha256: bytes


def open_btok(path: str | Path) -> Btok:
    """Open a token file, memory-mapped. Raises DataError unless all of it is as the module says."""
    path = Path(path)
    require_file(path)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header = _read_header(path, file, size)
            start = _offsets_start(header)
            file.seek(start)
            offsets = np.frombuffer(file.read(), _LITTLE).astype(np.int64, copy=False)
    except FileNotFoundError as cause:
        raise DataError(f"{path} must be a token file", got="no such file", fix="run the tokens stage") from cause
    _check_offsets(path, offsets, header)
    dtype = np.dtype("<u2" if header.token_bytes == 2 else "<u4")
    tokens: Any = np.zeros(0, dtype)
    if header.tokens:  # an empty map is an error of the system
        tokens = np.memmap(path, dtype, "r", offset=_HEADER.size, shape=(header.tokens,))
    _check_tokens(path, tokens, offsets, header)
    return Btok(tokens, offsets, header.vocab_size, header.sha256.hex())


def _offsets_start(header: _Header) -> int:
    tokens = header.tokens * header.token_bytes
    return _HEADER.size + tokens + -tokens % 8


def _read_header(path: Path, file: BinaryIO, size: int) -> _Header:
    data = file.read(_HEADER.size)
    if data[: len(MAGIC)] != MAGIC:
        _refuse(path, f"a file that begins with {data[:8]!r}" if data else "an empty file")
    if len(data) < _HEADER.size:
        _refuse(path, f"only {len(data)} bytes")
    header = _Header._make(_HEADER.unpack(data))
    if header.version != VERSION:
        _refuse(path, f"version {header.version}; this program reads version {VERSION}")
    if not BYTES < header.vocab_size <= 1 << 32 or header.token_bytes != id_type(header.vocab_size).itemsize:
        _refuse(path, f"{header.token_bytes} bytes a token for a vocabulary of {header.vocab_size:,}")
    must = _offsets_start(header) + 8 * (header.documents + 1)
    if size != must:
        sizes = f"{header.documents:,} documents of {header.tokens:,} tokens need {must:,}"
        _refuse(path, f"{size:,} bytes, where {sizes}: it was cut short, or changed")
    return header


def _check_offsets(path: Path, offsets: NDArray[np.int64], header: _Header) -> None:
    if offsets[0] != 0 or offsets[-1] != header.tokens or (offsets[1:] <= offsets[:-1]).any():
        _refuse(path, f"offsets that do not rise from 0 to {header.tokens:,}")


def _check_tokens(path: Path, tokens: Ids, offsets: NDArray[np.int64], header: _Header) -> None:
    starts = 0
    for begin in range(0, len(tokens), _PIECE):
        piece = tokens[begin : begin + _PIECE]
        if int(piece.max()) >= header.vocab_size:
            _refuse(path, f"the id {int(piece.max()):,} in a vocabulary of {header.vocab_size:,}")
        starts += int(np.count_nonzero(piece == BOS))
    if starts != header.documents or (tokens[offsets[:-1]] != BOS).any():
        _refuse(path, f"{starts:,} BOS where {header.documents:,} documents each start with one")


def _refuse(path: Path, got: str) -> NoReturn:
    raise DataError(
        f"{path} must be a whole token file (.btok)", got=got, fix="delete it: the tokens stage makes it again"
    )
