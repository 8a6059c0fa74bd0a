"""A folder of the user's own text as a feed: .jsonl (a record a line, records.py) and .txt (one prose document a file).

Files are taken in the order of their paths, at any depth; hidden files and other extensions are left out and counted.
Unlike a data set of the hub this is text that its owner can mend, so a bad record is an error with file and line.
Content is kept to the byte, but for a byte order mark at a file's start.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from andrea.errors import DataError
from andrea.files import sha256_file
from andrea.megachat import MAX_DOCUMENT_BYTES, Prose
from andrea.sources.catalogue import ALL
from andrea.sources.feed import Feed, Item
from andrea.sources.records import Parsed, Rejected, parse_line

KINDS = (".jsonl", ".txt")
_BOM = b"\xef\xbb\xbf"


def feed(folder: Path) -> Feed:
    """The feed of `folder`. Raises DataError when it is missing or holds no text."""
    paths, skipped = _walk(folder)
    digest = hashlib.sha256()
    for path in paths:
        _require_sound(path)
        name = os.fsencode(path.relative_to(folder).as_posix())  # which need not be UTF-8
        digest.update(name + f"\0{sha256_file(path)}\n".encode())
    facts = {"files": str(folder), "left_out_files": skipped}
    total = sum(path.stat().st_size for path in paths)
    return Feed(digest.hexdigest(), items(paths), total, "bytes", facts)


def _walk(folder: Path) -> tuple[list[Path], int]:
    """(text files in order, how many others there are)."""
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder of .jsonl and .txt files", got="no such folder", fix="make it")
    files = [path for path in folder.rglob("*") if path.is_file()]
    visible = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    ours = sorted((path for path in visible if path.suffix.lower() in KINDS), key=lambda path: path.as_posix())
    if not ours:
        kinds = Counter(path.suffix or path.name for path in files)
        got = f"{len(files)} other files: {dict(kinds.most_common(5))}" if files else "nothing"
        raise DataError(f"{folder} must hold .jsonl or .txt files", got=got, fix="put your text there")
    return ours, len(files) - len(ours)


def _require_sound(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} must be readable", got="no permission", fix="chmod u+r it, or take it out")
    size = path.stat().st_size
    if path.suffix.lower() == ".txt" and size > MAX_DOCUMENT_BYTES:
        must = f"{path} must be at most 64 MiB: a .txt file is one document"
        raise DataError(must, got=f"{size:,} bytes", fix="split it, or write .jsonl, a document a line")


def items(paths: list[Path]) -> Iterator[Item]:
    """The documents of these files, in this order."""
    for path in paths:
        yield from _text(path) if path.suffix.lower() == ".txt" else _jsonl(path)


def _text(path: Path) -> Iterator[Item]:
    data = path.read_bytes()
    text = _decode(data.removeprefix(_BOM), path, 1)
    if text.strip():
        yield Item(len(data), ALL, Parsed(Prose(text), 0))
    else:
        yield Item(len(data), ALL, None, "empty file")


def _jsonl(path: Path) -> Iterator[Item]:
    with open(path, "rb") as file:
        lines = iter(lambda: file.readline(2 * MAX_DOCUMENT_BYTES), b"")  # a longer one comes in two, neither JSON
        for number, data in enumerate(lines, 1):
            line = _decode(data.removeprefix(_BOM) if number == 1 else data, path, number)
            if not line.strip():
                continue
            try:
                yield Item(len(data), ALL, parse_line(line))
            except Rejected as cause:
                must = 'a JSON object with "turns", "conversations", "messages" or "text"'
                raise DataError(
                    f"{path}, line {number} must be {must}", got=f"{cause.reason}: {line.strip()[:80]}", fix="mend it"
                ) from cause


def _decode(data: bytes, path: Path, first_line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as cause:
        line = first_line + data.count(b"\n", 0, cause.start)
        raise DataError(
            f"{path}, line {line} must be UTF-8", got=cause, fix="save it as UTF-8, or take it out"
        ) from cause
