"""The run folder: lock, foreign runs put aside and brought back, nothing lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from andrea.errors import DataError, RunError
from andrea.fingerprint import Fingerprint
from andrea.training.lock import RunLock
from andrea.training.runfolder import RECORD, claim, is_of_run

A, B = Fingerprint({"train": {"lr": 1}}), Fingerprint({"train": {"lr": 2}})

HOLD = """
import sys, time
from pathlib import Path
from andrea.training.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def visit(runs: Path, mark: Fingerprint) -> list[str]:
    """Claim the folder as a trainer would, leave something in it, and go; returns what was said."""
    said: list[str] = []
    with claim(runs, "EXP", mark, said.append):
        note = runs / "EXP" / "visits"
        note.write_text((note.read_text() if note.exists() else "") + mark.short)
    return said


def test_two_runs_take_turns_and_keep_their_files(tmp_path: Path) -> None:
    """A setting tried and taken back must find the old run, with one line each time."""
    assert visit(tmp_path, A) == []
    assert visit(tmp_path, A) == []
    (line,) = visit(tmp_path, B)
    assert "train.lr 1 -> 2" in line
    assert f"EXP.{A.short}" in line
    said = visit(tmp_path, A)
    assert [f"EXP.{B.short}" in said[0], f"EXP.{A.short} is" in said[1]] == [True, True]
    assert (tmp_path / "EXP" / "visits").read_text() == 3 * A.short
    assert (tmp_path / f"EXP.{B.short}" / "visits").read_text() == B.short
    assert {path.name for path in tmp_path.iterdir()} == {"EXP", f"EXP.{B.short}"}


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    """Then runs/EXP is missing, and a plain start would begin from step 0 beside the old run."""
    visit(tmp_path, A)
    os.rename(tmp_path / "EXP", tmp_path / f"EXP.{A.short}")
    assert len(visit(tmp_path, A)) == 1
    assert (tmp_path / "EXP" / "visits").read_text() == 2 * A.short


def test_a_run_that_never_began_does_not_block_the_way_back(tmp_path: Path) -> None:
    """A trainer killed right after it took the lock leaves a folder without a fingerprint."""
    visit(tmp_path, A)
    os.rename(tmp_path / "EXP", tmp_path / f"EXP.{A.short}")
    RunLock(tmp_path / "EXP").release()
    visit(tmp_path, A)
    assert (tmp_path / "EXP" / "visits").read_text() == 2 * A.short


def test_a_name_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    """The user may have copied the folder."""
    visit(tmp_path, A)
    (tmp_path / f"EXP.{A.short}").mkdir()
    (tmp_path / f"EXP.{A.short}" / "mine").touch()
    visit(tmp_path, B)
    assert (tmp_path / f"EXP.{A.short}.2" / "visits").exists()
    assert (tmp_path / f"EXP.{A.short}" / "mine").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"fingerprint": "0", "train": {}}', '{"train": NaN}'])
def test_a_folder_that_cannot_say_what_it_is_is_an_error(tmp_path: Path, text: str) -> None:
    """Neither resumed nor overwritten."""
    visit(tmp_path, A)
    (tmp_path / "EXP" / RECORD).write_text(text)
    with pytest.raises(RunError, match="which run it is"):
        visit(tmp_path, A)
    (tmp_path / "EXP" / RECORD).unlink()
    (tmp_path / "EXP" / "checkpoints").mkdir()
    (tmp_path / "EXP" / "checkpoints" / "step_000001.bin").touch()
    with pytest.raises(RunError, match="which run it is"):
        visit(tmp_path, A)


def test_a_second_process_is_refused_with_the_pid_and_may_come_later(tmp_path: Path) -> None:
    """Two trainers in one folder would destroy the run; the lock of a dead one must not stay."""
    folder = tmp_path / "EXP"
    command = [sys.executable, "-c", HOLD, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"process {other.pid} "):
            RunLock(folder)
        with pytest.raises(RunError, match="one process at a time"):
            claim(tmp_path, "EXP", A, print)
        other.kill()
    RunLock(folder).release()
    assert (folder / "pid").read_text() == f"{os.getpid()}\n"


def test_a_pipe_in_place_of_the_process_id(tmp_path: Path) -> None:
    """Writing to it waited for a reader for ever; the lock is let go again."""
    os.mkfifo(tmp_path / "pid")
    with pytest.raises(DataError, match="must be a file"):
        RunLock(tmp_path)
    (tmp_path / "pid").unlink()
    RunLock(tmp_path).release()


def test_a_model_belongs_to_the_run_that_names_itself(tmp_path: Path) -> None:
    """`andrea runs` took two files that say nothing for a finished run, and `andrea export` did not."""
    assert not is_of_run({"fingerprint": A.digest}, tmp_path)
    visit(tmp_path, A)
    assert is_of_run({"fingerprint": A.digest}, tmp_path / "EXP")
    assert not is_of_run({"fingerprint": B.digest}, tmp_path / "EXP")
    (tmp_path / "EXP" / RECORD).write_text("{}")
    assert not is_of_run({}, tmp_path / "EXP")
