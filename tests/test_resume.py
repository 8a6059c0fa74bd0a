"""Exact resume of real processes: killed at any moment and in any way, a run ends with the bytes of an undisturbed one.

The engine is the CPU engine, except where the moment is chosen to the line (die_writing.py). The long form of this
test, through Snakemake, is acceptance_resume.py.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from tiny_run import NAME, make_project, promised, run_folder, set_experiment

HERE = Path(__file__).resolve().parent
PATH = os.pathsep.join([str(HERE.parent), str(HERE)])
SIZES = {
    "train__steps": 800,
    "train__horizon": 1000,
    "train__batch_size": 8,
    "model__d_model": 32,
    "model__context": 32,
    "validation__every": 100,
    "samples__every": 200,
    "checkpoints__every": 80,
}
STOPPED = 75
Trainer = subprocess.Popen[str]


def start(root: Path, *options: str, slow: bool = False, stderr: int | IO[str] = subprocess.DEVNULL) -> Trainer:
    """The trainer as a user or a rule starts it, in `root`; `slow` gives a stop time to find it at work."""
    program = [str(HERE / "slow_train.py")] if slow else ["-m", "andrea", "train"]
    command = [sys.executable, *program, "mini", "--threads", "2", *options]
    return subprocess.Popen(command, cwd=root, env=os.environ | {"PYTHONPATH": PATH}, stderr=stderr, text=True)


def step(root: Path) -> int:
    """Last step that a reader sees; json.load must work at any moment."""
    path = run_folder(root) / f"{NAME}.loss.json"
    records = json.loads(path.read_text()) if path.exists() else []
    return records[-1]["step"] if records else 0


def wait_until(condition: Callable[[], bool], trainer: Trainer) -> None:
    end = time.monotonic() + 60
    while trainer.poll() is None and not condition():
        assert time.monotonic() < end, "the trainer hangs"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("undisturbed")
    make_project(root, **SIZES)
    assert start(root).wait() == 0
    return promised(root)


def test_any_stop_at_any_moment(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """The promise of the whole project. Between stops the settings of the machine change: threads, and SIGUSR1."""
    make_project(tmp_path, **SIZES)
    chance = random.Random(1)
    kinds = [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGHUP]
    reached = 0
    for turn, kind in enumerate(kinds):
        trainer = start(tmp_path, *(["--threads", "1"] if turn % 2 else []), slow=True)
        wait_until(lambda past=reached: step(tmp_path) > past, trainer)
        if turn == 2:
            trainer.send_signal(signal.SIGUSR1)
        time.sleep(chance.uniform(0, 0.25))
        asked = time.monotonic()
        trainer.send_signal(kind)
        code = trainer.wait()
        reached = step(tmp_path)
        assert code == (-signal.SIGKILL if kind == signal.SIGKILL else STOPPED), f"{kind!r} after step {reached}"
        assert time.monotonic() - asked < 10
        if kind != signal.SIGKILL:
            assert (run_folder(tmp_path) / "checkpoints" / f"step_{reached:06d}.json").exists()
    assert start(tmp_path).wait() == 0
    assert promised(tmp_path) == undisturbed


def test_a_second_signal_does_not_change_how_it_ends(tmp_path: Path) -> None:
    """Ctrl-C reaches the trainer twice, from the terminal and through Snakemake; the second one came after the last
    message and made of a clean stop a death by signal, or kept the run's files from being closed.
    """
    make_project(tmp_path, **SIZES | {"train__steps": 10**6, "train__horizon": 10**6})
    trainer, log = start(tmp_path), run_folder(tmp_path) / "train.log"
    wait_until(lambda: step(tmp_path) > 0, trainer)
    trainer.send_signal(signal.SIGINT)
    wait_until(lambda: "the same command goes on" in log.read_text(), trainer)
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        trainer.send_signal(again)
        time.sleep(0.02)
    assert trainer.wait() == STOPPED
    assert not list(run_folder(tmp_path).glob(".*.tmp"))
    assert (run_folder(tmp_path) / "events.jsonl").read_text().count('"stopped"') == 1


def test_raised_steps_equal_a_longer_run(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """With the real engine: the schedule, the windows and the samples must not know train.steps."""
    make_project(tmp_path, **SIZES | {"train__steps": 330})
    assert start(tmp_path).wait() == 0
    set_experiment(tmp_path, **SIZES)
    assert start(tmp_path).wait() == 0
    assert promised(tmp_path) == undisturbed


def test_a_second_trainer_is_refused_and_an_orphan_stops(tmp_path: Path) -> None:
    """If Snakemake is killed, its trainer must save and leave; while one is there, another must not touch the run."""
    make_project(tmp_path, **SIZES | {"train__steps": 10**6, "train__horizon": 10**6})
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import test_resume as t, pathlib; t.start(pathlib.Path({str(tmp_path)!r})).wait()"],
        env=os.environ | {"PYTHONPATH": PATH},
        text=True,
    )
    wait_until(lambda: step(tmp_path) > 0, parent)
    pid = int((run_folder(tmp_path) / "pid").read_text())
    second = start(tmp_path, stderr=subprocess.PIPE)
    assert f"process {pid} holds its lock" in second.communicate()[1]
    assert second.returncode == 1
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and b"train" in Path(f"/proc/{pid}/cmdline").read_bytes():
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the orphan goes on")
        time.sleep(0.01)
    assert f"stopped at step {step(tmp_path):,}" in (run_folder(tmp_path) / "train.log").read_text()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The undisturbed run with the engine of die_writing.py."""
    root = tmp_path_factory.mktemp("plain")
    make_project(root)
    assert die_writing(root, 0, "never").returncode == 0
    return promised(root)


def die_writing(root: Path, step: int, place: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "die_writing.py"), str(root), str(step), place]
    environment = os.environ | {"PYTHONPATH": PATH}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_killed_in_the_middle_of_a_checkpoint(tmp_path: Path, plain: dict[str, str]) -> None:
    """At each point of a write a kill must leave the checkpoint before, and nothing that is taken for whole."""
    make_project(tmp_path)
    for at, place in ((10, "bin"), (20, "state"), (30, "manifest"), (40, "copy"), (20, "prune"), (0, "cut")):
        assert die_writing(tmp_path, at, place).returncode == -signal.SIGKILL, place
    assert die_writing(tmp_path, 60, "copy").returncode == -signal.SIGKILL
    assert die_writing(tmp_path, 0, "never").returncode == 0
    assert promised(tmp_path) == plain
    assert not list(tmp_path.rglob("*.tmp"))
    left = {path.name.partition(".")[0] for path in (run_folder(tmp_path) / "checkpoints").iterdir()}
    assert len(left) == 3, left


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB with a mini project."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("only root may mount a small file system, and not on every machine")
    try:
        make_project(path)
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_fills_up(disk: Path, plain: dict[str, str]) -> None:
    """ENOSPC at any write is a message, and the run goes on once there is space."""
    for kilobytes in (3, 30, 60, 100):
        filler = shutil.disk_usage(disk).free - kilobytes * 1024
        (disk / "filler").write_bytes(b"x" * filler)
        failed = die_writing(disk, 0, "never")
        (disk / "filler").unlink()
        assert failed.returncode == 1, f"with {kilobytes} KB"
        assert "StorageError: " in failed.stderr.splitlines()[-3]
    assert die_writing(disk, 0, "never").returncode == 0
    assert promised(disk) == plain


def test_a_disk_that_may_not_be_written(disk: Path) -> None:
    """A read-only mount is a message that says so."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    failed = die_writing(disk, 0, "never")
    assert failed.returncode == 1
    assert "Read-only file system" in failed.stderr
    assert "mount it for writing" in failed.stderr
