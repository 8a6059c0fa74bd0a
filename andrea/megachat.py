"""Megachat: conversations and prose as plain text that a model reads and writes, and back, without loss.

    > Hi, how are you?                 a user turn
    < Fine, thanks.
    And you?                           a turn may have any number of lines
    > Great!

Grammar. A document is lines joined by "\\n", with none after the last. If its first line starts with "> " or "< " it
is a conversation: each line that starts so opens a turn, and the other lines continue the turn above them. Any other
document is prose. A content line that would itself read as something else, because it starts with "> ", "< ",
U+0010 or U+001E, gets one U+0010 ("data link escape") in front; the first line of a turn stands behind its mark and
needs none. Ordinary chat therefore holds no escapes.

A file (.txt.zst) is documents, each followed by "\\n", U+001E ("record separator") and "\\n": one zstd frame with a
checksum (andrea/packed.py), so the same documents give the same bytes with the same zstd.

Unusual: only "\\n" ends a line. CR, CRLF, U+0085, U+2028 and control characters are content, so str.splitlines() must
never touch this text. Empty turns, turns of one role in a row and conversations that start with a reply are all
kept. `decode` takes any string, because models write any string. Lone surrogates are fine in `encode` and `decode`,
but no UTF-8 file can hold them: whoever makes documents replaces them first and counts that (sources/records.py).
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self

from andrea.errors import DataError
from andrea.files import atomic_file
from andrea.packed import compressor, damaged, unpack

Role = Literal["user", "reply"]

USER = "> "
REPLY = "< "
ESCAPE = "\x10"
SEPARATOR = "\n\x1e\n"
MAX_DOCUMENT_BYTES = 64 << 20

_MARKS: dict[str, str] = {"user": USER, "reply": REPLY}
_ROLES: dict[str, Role] = {">": "user", "<": "reply"}
_OPENING = re.compile("(?:\\A|\n)([<>]) ")
_AMBIGUOUS = re.compile("\n(?=[<>] |[\x10\x1e])")
_END = SEPARATOR.encode()
_WHAT = "a whole megachat file"
_FIX = "delete its folder and run the stage anew"


class Turn(NamedTuple):
    """What one side says. `role` is "user" or "reply"."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """At least one turn, in order."""

    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("a conversation has at least one turn")


@dataclass(frozen=True, slots=True)
class Prose:
    """Running text without turns."""

    text: str


Document = Conversation | Prose


def encode(document: Document) -> str:
    """One document as megachat text; `decode` gives the equal document back."""
    if isinstance(document, Prose):
        return _escape("\n" + document.text)[1:]
    text = "\n".join([_MARKS[role] + text for role, text in document.turns])
    if len(_AMBIGUOUS.findall(text)) == len(document.turns) - 1:
        return text  # the only lines that read as turns are turns: almost every document, and much faster
    return "\n".join([_MARKS[role] + _escape(text) for role, text in document.turns])


def decode(text: str) -> Document:
    """The document that `text` says; exact inverse of `encode`, and defined for every other string too."""
    if text[:2] not in (USER, REPLY):
        return Prose(_unescape("\n" + text)[1:])
    parts = _OPENING.split(text)[1:]
    turns = zip(parts[::2], parts[1::2], strict=True)
    return Conversation(tuple(Turn(_ROLES[mark], _unescape(content)) for mark, content in turns))


def prompt_text(user_turn: str) -> str:
    """Megachat text of a conversation that ends right where the text of the first reply begins."""
    return encode(Conversation((Turn("user", user_turn), Turn("reply", ""))))


def characters(document: Document) -> int:
    """Characters of content; marks, escapes and the line ends between turns are not counted."""
    return len(document.text) if isinstance(document, Prose) else sum([len(turn.text) for turn in document.turns])


def _escape(text: str) -> str:
    return _AMBIGUOUS.sub("\n" + ESCAPE, text)


def _unescape(text: str) -> str:
    return text.replace("\n" + ESCAPE, "\n")


# ---------------------------------------------------------------------------------------------------------------------


class Writer:
    """Writes documents to `path`, which appears when the block ends well and not at all otherwise.

    Afterwards: `documents` and `bytes` (UTF-8 of the documents, separators not counted), `file_bytes` and `sha256`
    (of the compressed file). Raises StorageError when the disk refuses, DataError for a document that no file can hold.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.documents = self.bytes = self.file_bytes = 0
        self._hash = hashlib.sha256()
        self._pack = compressor()
        self._stack = ExitStack()
        self._file: BinaryIO | None = None

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def add(self, text: str) -> None:
        """Append one document, given as megachat text."""
        try:
            data = text.encode()
        except UnicodeEncodeError as cause:
            raise self._refuse("hold no lone surrogates", cause, "replace them by U+FFFD") from cause
        if len(data) > MAX_DOCUMENT_BYTES:
            raise self._refuse("be at most 64 MiB", f"{len(data):,} bytes", "lower max_characters of its source")
        self.documents += 1
        self.bytes += len(data)
        self._write(self._pack.compress(data + _END))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            self._write(self._pack.flush())

    def _write(self, packed: bytes) -> None:
        assert self._file is not None, "use the writer in a with block"
        self._hash.update(packed)
        self.file_bytes += len(packed)
        self._file.write(packed)

    def _refuse(self, must: str, got: object, fix: str) -> DataError:
        return DataError(f"{self.path}: document {self.documents + 1} must {must}", got=got, fix=fix)


# ---------------------------------------------------------------------------------------------------------------------


def read(path: str | Path) -> Iterator[str]:
    """The documents of a .txt.zst file as megachat text, one at a time.

    Raises DataError with the document's number and byte offset (in the unpacked text) when the file is missing, not
    zstd, damaged, cut short, not UTF-8, or not separated as megachat is.
    """
    path = Path(path)
    offset = 0
    for number, data in enumerate(_split(path), 1):
        where = f"document {number} at byte {offset:,}"
        try:
            text = data.decode()
        except UnicodeDecodeError as cause:
            raise _damaged(path, f"{where} is not UTF-8: {cause}") from cause
        if "\n\x1e" in text or text.startswith("\x1e"):
            raise _damaged(path, f"{where} has a record separator inside")
        yield text
        offset += len(data) + len(_END)


def _split(path: Path) -> Iterator[bytes]:
    """The documents of `path` as bytes."""
    pending = bytearray()
    done = 0
    for piece in unpack(path, _WHAT, _FIX):
        start = max(0, len(pending) - len(_END) + 1)  # a separator may straddle two pieces
        pending += piece
        end = pending.rfind(_END, start)
        if end >= 0:
            documents = bytes(pending[:end]).split(_END)
            yield from documents
            done += len(documents)
            del pending[: end + len(_END)]
        if len(pending) > MAX_DOCUMENT_BYTES + len(_END):
            raise _damaged(path, f"document {done + 1} is longer than 64 MiB")
    if pending:
        raise _damaged(path, f"document {done + 1} is cut short after {len(pending):,} bytes")


def _damaged(path: Path, got: str) -> DataError:
    return damaged(path, _WHAT, got, _FIX)
