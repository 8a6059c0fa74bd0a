"""Token files: what was written comes back, and no other, cut or damaged file passes for one."""

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from andrea import btok
from andrea.btok import open_btok, write
from andrea.errors import DataError

SHA = "0123456789abcdef" * 4
HEADER = 128
DOCUMENTS = [np.array([256, 1, 2, 3]), np.array([256]), np.array([256, 2304])]


def make(path: Path, documents: Any = DOCUMENTS, vocab_size: int = 2305) -> bytes:
    write(path, documents, vocab_size=vocab_size, tokenizer_sha256=SHA)
    return path.read_bytes()


@given(st.lists(st.lists(st.integers(0, 255) | st.integers(257, 69_999), max_size=9), max_size=9), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path: Path, documents: list[list[int]], wide: bool) -> None:
    """Both widths, any padding, no documents at all, documents of BOS alone."""
    vocab_size = 70_000 if wide else 65_536
    arrays = [np.array([256, *(n % vocab_size for n in ids if n % vocab_size != 256)], np.int64) for ids in documents]
    path = tmp_path / "x.btok"
    counts = write(path, iter(arrays), vocab_size=vocab_size, tokenizer_sha256=SHA)
    got = open_btok(path)
    assert counts == (len(arrays), sum(map(len, arrays)))
    assert got.tokens.dtype == (np.uint32 if wide else np.uint16)
    assert got.offsets.dtype == np.int64
    assert (got.vocab_size, got.tokenizer_sha256) == (vocab_size, SHA)
    starts = got.offsets.tolist()
    read = [got.tokens[a:b].tolist() for a, b in pairwise(starts)]
    assert read == [array.tolist() for array in arrays]


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    """Other programs read the file by its description."""
    data = make(tmp_path / "x.btok")
    assert data[:8] == b"ANDREABT"
    assert struct.unpack("<IIQQQ", data[8:40]) == (1, 2, 2305, 3, 7)
    assert data[40:72].hex() == SHA
    assert data[72:HEADER] == bytes(56)
    assert np.frombuffer(data[HEADER : HEADER + 14], "<u2").tolist() == [256, 1, 2, 3, 256, 256, 2304]
    assert data[HEADER + 14 : HEADER + 16] == bytes(2)
    assert np.frombuffer(data[HEADER + 16 :], "<i8").tolist() == [0, 4, 5, 7]
    assert make(tmp_path / "y.btok") == data


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    """A copy that stopped short, anywhere, must not look like a smaller corpus."""
    data = make(tmp_path / "x.btok")
    cut = tmp_path / "cut.btok"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        with pytest.raises(DataError):
            open_btok(cut)
    cut.write_bytes(data + b"\0")
    with pytest.raises(DataError, match="whole token file"):
        open_btok(cut)


def put(form: str, place: int, value: int) -> Any:
    def change(data: bytearray) -> None:
        struct.pack_into(form, data, place, value)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (put("<Q", 0, 0), "begins with"),
        (put("<I", 8, 2), "version 2"),
        (put("<I", 12, 4), "4 bytes a token"),
        (put("<I", 12, 3), "3 bytes a token"),
        (put("<Q", 16, 256), "vocabulary of 256"),
        (put("<Q", 16, 1 << 40), "vocabulary of"),
        (put("<Q", 16, 2304), "the id 2,304"),
        (put("<Q", 24, 2), "need"),
        (put("<Q", 24, (1 << 64) - 1), "need"),
        (put("<Q", 32, 1 << 62), "need"),
        (put("<Q", 32, 8), "offsets"),
        (put("<H", HEADER, 257), "BOS"),
        (put("<H", HEADER + 2, 256), "BOS"),
        (put("<H", HEADER + 2, 2305), "the id 2,305"),
        (put("<q", HEADER + 16, 1), "offsets"),
        (put("<q", HEADER + 24, 3), "BOS"),
        (put("<q", HEADER + 24, 5), "offsets"),
        (put("<q", HEADER + 24, -4), "offsets"),
        (put("<q", HEADER + 32, (1 << 63) - 1), "offsets"),
        (put("<q", HEADER + 40, 6), "offsets"),
    ],
)
def test_changed_files_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    """Each field is checked for itself; 8 tokens in place of 7 even give the same file size."""
    data = bytearray(make(tmp_path / "x.btok"))
    change(data)
    path = tmp_path / "bad.btok"
    path.write_bytes(data)
    with pytest.raises(DataError) as refused:
        open_btok(path)
    assert told in refused.value.got


@pytest.mark.parametrize("data", [b"", b"> hi\n< hello\n" * 50, b"ANDREABT", b"\0" * 4096])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.btok"
    path.write_bytes(data)
    with pytest.raises(DataError, match="must be a whole token file"):
        open_btok(path)
    with pytest.raises(DataError, match="must be a token file"):
        open_btok(tmp_path / "none.btok")


def test_a_pipe_or_a_folder_is_refused(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "x.btok")
    with pytest.raises(DataError, match="must be a file"):
        open_btok(tmp_path / "x.btok")
    with pytest.raises(DataError, match="must be a file"):
        open_btok(tmp_path)


def test_checks_reach_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad id in the last piece of a large file counts as much as one in the first."""
    monkeypatch.setattr(btok, "_PIECE", 3)
    path = tmp_path / "x.btok"
    data = bytearray(make(path))
    assert len(open_btok(path).tokens) == 7
    put("<H", HEADER + 12, 2305)(data)
    path.write_bytes(data)
    with pytest.raises(DataError, match="whole token file"):
        open_btok(path)


@pytest.mark.parametrize("ids", [[], [1, 2], [256, 2305], [256, 1, 256], [256, 70_000]])
def test_bad_documents_are_not_written(tmp_path: Path, ids: list[int]) -> None:
    """uint16 would wrap 70,000 to 4,464 in silence. The file that was there stays."""
    path = tmp_path / "x.btok"
    before = make(path)
    with pytest.raises(DataError, match="document 2 must start with its only BOS"):
        make(path, [np.array([256, 1]), np.array(ids, np.int64)])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.btok"]


def test_tokens_are_mapped_not_loaded(tmp_path: Path) -> None:
    """A corpus larger than memory must open."""
    path = tmp_path / "x.btok"
    make(path)
    assert isinstance(open_btok(path).tokens, np.memmap)
    assert not open_btok(path).tokens.flags.writeable
