"""Files are whole or absent, and what the system refuses becomes a message."""

import errno
import io
import json
import os
from pathlib import Path

import pytest

from andrea import files
from andrea.errors import DataError, StorageError
from andrea.progress import Progress, short_time


def test_atomic_file_leaves_the_old_bytes_when_writing_fails(tmp_path: Path) -> None:
    """A half-written model under its final name would count as finished."""
    path = tmp_path / "a" / "model.bin"
    files.write_atomic(path, b"old")
    with pytest.raises(RuntimeError), files.atomic_file(path) as file:  # noqa: PT012
        file.write(b"half of the new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["model.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_refused_writes_become_storage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A full disk is a user's matter: one screen, no traceback, no temporary file left."""

    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="must be writable") as caught:
        files.write_atomic(tmp_path / "x", b"data")
    assert os.strerror(code) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_other_os_errors_keep_their_type(tmp_path: Path) -> None:
    """Only refusals to write are the user's; a missing file elsewhere is a defect of ours."""
    with pytest.raises(FileNotFoundError), files.storing(tmp_path):
        (tmp_path / "absent").read_bytes()


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"x": NaN}'])
def test_hostile_json_is_a_data_error(tmp_path: Path, text: bytes) -> None:
    """Manifests come from outside: damaged ones are named, not crashed on."""
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(DataError, match="the manifest"):
        files.read_json(tmp_path / "m.json", "the manifest")


def test_endless_json_is_refused_unread(tmp_path: Path) -> None:
    """A hole of 5 GB under a manifest's name filled the memory."""
    with open(tmp_path / "m.json", "wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(DataError, match="more than 64 MiB"):
        files.read_json(tmp_path / "m.json", "the manifest")


def test_a_missing_file_names_its_own_target(tmp_path: Path) -> None:
    """`andrea firehose 12m` said to train the tiny model."""
    for folder, target in (("ANDREA-12M-FP32", "train_12m_fp32"), ("ANDREA-12M.0123abcd", "train_12m")):
        with pytest.raises(DataError, match=f"--cores all {target}$"):
            files.read_json(tmp_path / "data" / folder / "x.json", "it")


def test_a_folder_or_a_pipe_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    """Guards against a traceback for the one, and against a reader that waits for ever for the other."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(DataError, match="must be a file"):
            files.read_json(tmp_path / name, "the manifest")
    with pytest.raises(StorageError, match="move it away"):
        files.write_atomic(tmp_path / "folder", b"data")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="move it away"), files.storing(tmp_path / "file"):
        (tmp_path / "file").mkdir(exist_ok=True)


def test_json_is_strict_and_round_trips(tmp_path: Path) -> None:
    """NaN is no JSON, and other readers refuse it."""
    files.write_json(tmp_path / "m.json", {"text": "é\u2028", "x": 0.1})
    assert files.read_json(tmp_path / "m.json", "it") == {"text": "é\u2028", "x": 0.1}
    with pytest.raises(ValueError):  # noqa: PT011
        files.write_json(tmp_path / "m.json", {"x": float("nan")})
    assert json.loads((tmp_path / "m.json").read_text())["x"] == 0.1


def test_require_free_names_both_sizes(tmp_path: Path) -> None:
    """A run that dies at its first checkpoint for lack of disk has lost its hours."""
    files.require_free(tmp_path / "not" / "there", 1, "a checkpoint")
    with pytest.raises(StorageError, match="a checkpoint needs"):
        files.require_free(tmp_path, 1 << 60, "a checkpoint")


def test_progress_on_a_pipe_is_quiet_and_tells_the_time_left() -> None:
    """A log of a day must not hold a million progress lines."""
    out = io.StringIO()
    progress = Progress("train", 100, "steps", stream=out)
    for step in range(100):
        progress.update(step)
    assert out.getvalue() == ""
    assert progress.line(50, 10.0, "loss 1.5") == "train 50/100 steps  10 s left  loss 1.5  5.00 steps/s"
    assert [short_time(s) for s in (-1, 42, 185, 7800, 270_000)] == [
        "0 s",
        "42 s",
        "3 min 05 s",
        "2 h 10 min",
        "3.1 days",
    ]


@pytest.mark.parametrize(
    ("columns", "encoding", "starts"), [(100, "utf-8", "█"), (100, "ascii", "#"), (40, "utf-8", "tr")]
)
def test_progress_on_a_terminal_fits_its_line(
    monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str, starts: str
) -> None:
    """A line that wraps cannot be rewritten in place: the terminal fills with its remains."""

    class Terminal(io.StringIO):
        encoding = ""

        def isatty(self) -> bool:
            return True

    out = Terminal()
    out.encoding = encoding
    monkeypatch.setenv("COLUMNS", str(columns))
    Progress("train", 100, "steps", stream=out).update(50, "loss 1.500  12,000 tokens/s")
    text = out.getvalue().removeprefix("\r")
    assert text.startswith(starts) and len(text) < columns
