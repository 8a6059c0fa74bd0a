"""Reading a file that grows: only what is new, and never a wrong record, whatever happens to the file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from dashboard_kit import steps

from andrea.dashboard.tail import Tail
from andrea.recordfile import RecordFile, to_array


class Reader:
    """A tail that keeps what it is given."""

    def __init__(self, path: Path, budget: int = 1 << 20) -> None:
        self.found: list[Any] = []
        self.tail = Tail(path, self._take, self.found.clear, budget)

    def _take(self, record: Any) -> bool:
        if not isinstance(record, dict) or "bad" in record:
            return False
        self.found.append(record)
        return True

    def read(self) -> list[int]:
        """Steps so far, after reading all that there is."""
        while self.tail.read() and not self.tail.complete:
            pass
        return [record["step"] for record in self.found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.loss.json"


def test_a_growing_file_is_read_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 200,000 steps was read from its beginning every two seconds; and its two copies take turns."""
    sizes: list[int] = []
    pread = os.pread

    def counting(handle: int, size: int, offset: int) -> bytes:
        data = pread(handle, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    file, reader = RecordFile(path), Reader(path)
    assert reader.read() == []
    file.cut(0)
    assert reader.read() == []
    for turn in range(5):
        file.append(steps(100 * turn + 1, 100 * turn + 100))
        file.flush()
        inode = path.stat().st_ino
        sizes.clear()
        assert reader.read() == list(range(1, 100 * turn + 101))
        assert sum(sizes) < 20_000 and path.stat().st_ino == inode
    sizes.clear()
    assert not reader.tail.read() and sizes == []  # nothing new, nothing read
    assert reader.found == json.loads(path.read_bytes())
    file.close()


def test_a_long_file_is_read_in_parts(path: Path) -> None:
    """One answer took seconds while the whole history was parsed."""
    path.write_bytes(to_array(steps(1, 400)))
    reader, calls = Reader(path, budget=4000), 0
    while reader.tail.read():
        calls += 1
        assert len(reader.found) <= 50 * calls
        if reader.tail.complete:
            break
    assert [r["step"] for r in reader.found] == list(range(1, 401)) and calls > 8


@pytest.mark.parametrize("torn", [1, 2, 3, 20, 60])
def test_a_torn_end_waits_for_its_rest(path: Path, torn: int) -> None:
    """Half a record is no record, and no reason to give up on the file."""
    data = to_array(steps(1, 5))
    path.write_bytes(data[:-torn])
    reader = Reader(path)
    assert reader.read() == [1, 2, 3, 4, 5][: len(reader.found)] and len(reader.found) >= 4
    assert reader.tail.trouble == "" and reader.tail.complete
    path.write_bytes(to_array(steps(1, 7)))
    assert reader.read() == [1, 2, 3, 4, 5, 6, 7]


def test_a_history_that_was_cut_back_is_read_anew(path: Path) -> None:
    """After a crash the steps past the checkpoint come again; the page must show the new ones."""
    reader = Reader(path)
    path.write_bytes(to_array(steps(1, 50)))
    assert len(reader.read()) == 50
    path.write_bytes(to_array([*steps(1, 30), *steps(31, 60, ms=7.5)]))  # cut, and longer than before by now
    assert reader.read() == list(range(1, 61)) and reader.found[49]["ms"] == 7.5
    path.write_bytes(to_array(steps(1, 10)))
    assert reader.read() == list(range(1, 11))


@pytest.mark.parametrize(
    "damage", [b"\0" * 30, b"{}{}", b'{"step":NaN}', b'{"bad":1}', b"[" * 100_000, b"7", b'{"step":1},{"step":2}']
)
def test_what_lies_behind_damage_is_not_believed(path: Path, damage: bytes) -> None:
    """A power cut leaves zeros; shown as steps they would be a lie. A repaired file is read on."""
    lines = to_array(steps(1, 9)).split(b"\n")
    path.write_bytes(b"\n".join([*lines[:5], damage + b",", *lines[5:]]))
    reader = Reader(path)
    assert reader.read() == [1, 2, 3, 4] and "damaged" in reader.tail.trouble
    path.write_bytes(b"\n".join(lines))
    assert reader.read() == list(range(1, 10)) and reader.tail.trouble == ""


def test_a_file_that_goes_and_comes(path: Path) -> None:
    """`andrea fresh` renames the run while somebody watches it."""
    reader = Reader(path)
    path.write_bytes(to_array(steps(1, 5)))
    assert len(reader.read()) == 5
    path.unlink()
    assert reader.read() == [] and not reader.tail.exists and not reader.tail.read()
    path.write_bytes(to_array(steps(1, 5)))  # the very same bytes count as new
    assert len(reader.read()) == 5


def test_something_else_under_the_name(path: Path) -> None:
    """Opening a pipe waits for ever, a folder cannot be read, a line without an end would fill the memory."""
    reader = Reader(path, budget=10_000)
    os.mkfifo(path)
    assert reader.read() == [] and "not a file" in reader.tail.trouble
    path.unlink()
    path.mkdir()
    assert reader.read() == [] and reader.tail.trouble
    path.rmdir()
    path.write_bytes(b"[\n" + b" " * 30_000)
    assert reader.read() == [] and "line of more than" in reader.tail.trouble
