"""A tokenizer in use: text to ids and back, from one tokenizer.json.

Unusual: a lone surrogate, which UTF-8 cannot hold, is replaced by U+FFFD with a warning that says how many were.
Decoding joins the tokens' bytes, so that only the whole text, and no single token, needs to be UTF-8. A document is
never cut before it is encoded: greedy matching depends on where it starts.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from andrea.errors import DataError
from andrea.files import sha256_file
from andrea.tokenizer.encoders import Ids, id_type, make_encoder
from andrea.tokenizer.exported import Learned, read
from andrea.tokenizer.ids import BOS, BYTES
from andrea.tokenizer.parallel import encode_batches

_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """`token_bytes[id]` are the bytes of a token (BOS has none); `sha256` is that of the file."""

    bos = BOS

    def __init__(self, learned: Learned, sha256: str) -> None:
        self.learned, self.kind, self.sha256 = learned, learned.kind, sha256
        self.token_bytes = [*(bytes([byte]) for byte in range(BYTES)), b"", *learned.segments]
        self.vocab_size = len(self.token_bytes)
        self.dtype = id_type(self.vocab_size)
        self._encode = make_encoder(learned)

    def encode(self, text: str) -> Ids:
        """Ids of `text`, without BOS: uint16 when the vocabulary allows it, else uint32."""
        data, replaced = to_utf8(text)
        _warn(replaced)
        return self.encode_bytes(data)

    def encode_bytes(self, data: bytes) -> Ids:
        """Ids of any bytes for Harris; BPE raises UnicodeDecodeError unless they are UTF-8."""
        return self._encode([data], False).ids

    def encode_many(self, texts: Iterable[str], processes: int = 1, *, bos: bool = False) -> Iterator[Ids]:
        """As `encode` for each text, in order, by `processes` workers; with BOS in front if `bos`.

        Reads a few MB of text ahead and no more. Raises RunError when a worker dies.
        """
        replaced = 0

        def documents() -> Iterator[bytes]:
            nonlocal replaced
            for text in texts:
                data, count = to_utf8(text)
                replaced += count
                yield data

        for batch in encode_batches(self.learned, self._encode, documents(), processes, bos):
            ends = np.cumsum(batch.sizes).tolist()
            for start, end in zip([0, *ends], ends, strict=False):
                yield batch.ids[start:end]
        _warn(replaced)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of a sequence of ids; BOS gives none. Raises DataError for an id outside the vocabulary."""
        numbers = [int(number) for number in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            raise DataError(
                f"token ids must be 0 to {self.vocab_size - 1:,}",
                got=f"{min(numbers):,} to {max(numbers):,}",
                fix="decode with the tokenizer that made the ids",
            )
        return b"".join([self.token_bytes[number] for number in numbers])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of ids, with U+FFFD for bytes that are not UTF-8."""
        return self.decode_bytes(ids).decode(errors="replace")


def load(path: str | Path) -> Tokenizer:
    """Load a tokenizer.json that ANDREA made; nothing else is needed. Raises DataError for any other file."""
    return Tokenizer(read(Path(path)), sha256_file(path))


def to_utf8(text: str) -> tuple[bytes, int]:
    """UTF-8 of `text`, and how many lone surrogates were replaced by U+FFFD."""
    try:
        return text.encode(), 0
    except UnicodeEncodeError:
        clean, replaced = _SURROGATES.subn("\ufffd", text)
        return clean.encode(), replaced


def _warn(replaced: int) -> None:
    if replaced:
        warnings.warn(f"{replaced:,} lone surrogates replaced by U+FFFD", UnicodeWarning, stacklevel=3)
