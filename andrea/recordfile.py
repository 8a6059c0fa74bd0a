"""A JSON array on disk that grows: one record a line, valid at every moment, repaired after a crash.

Appending in place would tear now and then for a reader that is reading just then, so there are two copies: new
records go into the hidden one, by one write that begins on its closing bracket and ends with a new one, and then the
name is moved onto it. A crash can tear only the end of a copy; `RecordFile` keeps the whole records before the tear.
Records have a "step" and stand in its order.
"""

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from andrea.errors import StorageError
from andrea.files import refuse_constant, require_file, storing, sync_folder, write_atomic

FLUSH_SECONDS = 0.25  # readers have as long to finish with a copy before it is written to again

Record = dict[str, Any]
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_OPEN, _CLOSE = b"[\n", b"\n]\n"


class _Line(NamedTuple):
    text: bytes
    record: Record


class RecordFile:
    """A JSON array of records that have a "step". Opening it reads what is whole; `cut` must come before `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = list(_whole_lines(path))
        self._pending: list[Record] = []
        self._copies: list[_Copy] = []  # the hidden one first, the one that has the name last
        self._flushed = 0.0
        self.count = len(self._lines)

    @property
    def records(self) -> list[Record]:
        """The whole records as found on disk; empty after `cut`, which hands them over."""
        return [line.record for line in self._lines]

    def count_until(self, step: int) -> int:
        """Whole records on disk up to and including `step`; before `cut`."""
        return sum(line.record["step"] <= step for line in self._lines)

    def cut(self, step: int, after: int = -1) -> list[Record]:
        """Keep the whole records past `after` up to `step`; open for appending; returns what stays."""
        kept = [line for line in self._lines if after < line.record["step"] <= step]
        data = _OPEN + b",\n".join(line.text for line in kept) + (_CLOSE if kept else _CLOSE[1:])
        if not self.path.exists() or self.path.read_bytes() != data:
            write_atomic(self.path, data)
        hidden = [self.path.with_name(f".{self.path.name}.{letter}.tmp") for letter in "ab"]
        write_atomic(hidden[0], data)
        _link(self.path, hidden[1])
        self._copies = [_Copy(path, len(data), empty=not kept) for path in hidden]
        self.count, self._lines = len(kept), []
        return [line.record for line in kept]

    def append(self, records: Sequence[Record]) -> None:
        """Add records; they reach the file within FLUSH_SECONDS of further calls, or by `flush`."""
        self._pending += records
        self.count += len(records)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Show all records so far to readers. Raises StorageError when the disk refuses."""
        if not self._pending:
            return
        text = _lines_of(self._pending)
        self._pending = []
        for copy in self._copies:
            copy.behind.append(text)
        with storing(self.path):
            self._copies[0].catch_up()
            self._copies[0].take_name(self.path)
        self._copies.reverse()
        self._flushed = time.monotonic()

    def flush_all(self) -> None:
        """As `flush`, and bring the hidden copy up to date too; `sync` then makes durable what stands here."""
        self.flush()
        with storing(self.path):
            self._copies[0].catch_up()

    def sync(self) -> None:
        """Make both copies and the name durable; may run beside `append`. Whichever a power cut leaves has it all."""
        with storing(self.path):
            for copy in sorted(self._copies, key=lambda copy: copy.path):
                os.fsync(copy.file)
            sync_folder(self.path.parent)

    def restart(self) -> None:
        """Begin anew without records; what there was is forgotten."""
        self.close()
        self._pending = []
        self.cut(0)

    def close(self) -> None:
        """Let go of the file; what was not flushed is lost."""
        with storing(self.path):
            for copy in self._copies:
                os.close(copy.file)
                copy.path.unlink(missing_ok=True)
        self._copies = []


class _Copy:
    """One of the two copies under its hidden name, with the texts that are still to be written to it."""

    def __init__(self, path: Path, size: int, *, empty: bool) -> None:
        self.path, self.size, self.empty = path, size, empty
        self.behind: list[bytes] = []
        with storing(path):
            self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def catch_up(self) -> None:
        """One write from the closing bracket on."""
        if not self.behind:
            return
        data = (b"" if self.empty else b",\n") + b",\n".join(self.behind) + _CLOSE
        at = self.size - len(_CLOSE[1:] if self.empty else _CLOSE)
        written = 0
        while written < len(data):
            written += os.pwrite(self.file, data[written:], at + written)
        self.size, self.empty, self.behind = at + len(data), False, []

    def take_name(self, name: Path) -> None:
        link = self.path.with_name(f".{name.name}.link.tmp")
        _link(self.path, link)
        os.replace(link, name)


def _link(file: Path, name: Path) -> None:
    """Give `file` a second name."""
    try:
        name.unlink(missing_ok=True)
        os.link(file, name)
    except FileNotFoundError as cause:
        raise StorageError(
            f"{file.parent} must stay where it is while it is written to",
            got="it was moved, or files in it were deleted",
            fix="bring it back, and type the same command again",
        ) from cause
    except OSError as cause:
        if cause.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"{file.parent} must lie on a file system with hard links",
            got=cause.strerror,
            fix="keep the project on a local disk (ext4, xfs, btrfs, APFS, NTFS)",
        ) from cause


def to_array(records: Sequence[Record]) -> bytes:
    """A whole run file of `records`, of which there is at least one."""
    return _OPEN + _lines_of(records) + _CLOSE


def _lines_of(records: Sequence[Record]) -> bytes:
    lines = [json.dumps(r, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for r in records]
    return ",\n".join(lines).encode()


def _whole_lines(path: Path) -> Iterator[_Line]:
    """Records of a file as long as they are whole and in order; nothing when there is no file."""
    require_file(path)
    data = _as_lines(path.read_bytes()) if path.exists() else b""
    before = 0
    for text in data[len(_OPEN) :].split(b"\n") if data.startswith(_OPEN) else []:
        text = text.removesuffix(b",")
        try:
            record = json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return
        if not _is_record(record) or record["step"] < before:
            return
        before = record["step"]
        yield _Line(text, record)


def _as_lines(data: bytes) -> bytes:
    """`data`, or its records one a line when an editor has laid a whole array out in another way: the numbers are the same."""
    if data.startswith(_OPEN + b'{"step":') or not data.strip(b"[] \r\n"):
        return data
    try:
        value = json.loads(data, parse_constant=refuse_constant)
        return to_array(value) if isinstance(value, list) else data
    except (ValueError, RecursionError):
        return data


def _is_record(value: object) -> bool:
    """Whether what the trainer reads of `value` later is there; readers for people check the rest."""
    if not isinstance(value, dict) or type(value.get("step")) is not int:
        return False
    if not isinstance(value.get("coherence", 0.0), float):
        return False
    results = value.get("validation", {})
    return isinstance(results, dict) and all(
        isinstance(r, dict) and isinstance(r.get("nats_per_token"), float) for r in results.values()
    )


def read_records(path: Path) -> list[Record]:
    """The whole records of a run file, also of one that is being written or was torn by a crash."""
    return [line.record for line in _whole_lines(path)]
