"""What the Snakefile does around a run: finds trainers, passes signals on, explains stops, removes stale locks."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from andrea import hooks
from andrea.errors import EngineError
from andrea.experiment import Experiment, load

ROOT = Path(__file__).resolve().parent.parent
TRAINER = """
import fcntl, os, sys, time
file = open(sys.argv[1] + "/lock", "a")
fcntl.flock(file, fcntl.LOCK_EX)
open(sys.argv[1] + "/pid", "w").write(str(os.getpid()))
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import signal, subprocess, sys
from pathlib import Path
from andrea.hooks import forward_sigterm
signal.signal(signal.SIGTERM, lambda number, frame: print("earlier handler", flush=True))
forward_sigterm(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1] + "/runs/OURS"], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
print(child.wait())
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds runs/OTHER as a trainer does; it is not a child of what the tests start."""
    (tmp_path / "runs" / "OTHER").mkdir(parents=True)
    process = start(TRAINER, str(tmp_path / "runs" / "OTHER"))
    yield process
    process.kill()
    process.communicate()


def test_a_trainer_is_found_while_it_lives(tmp_path: Path, trainer: subprocess.Popen[str]) -> None:
    """Guards against a stale pid file that is taken for a trainer."""
    assert hooks.trainers(tmp_path) == {"OTHER": trainer.pid}
    trainer.kill()
    trainer.wait()
    assert hooks.trainers(tmp_path) == {}


@pytest.mark.parametrize("pid", [pytest.param(str(os.getpid()), id="a process"), "no number", "-1", ""])
def test_a_stranger_in_the_pid_file_is_no_trainer(tmp_path: Path, trainer: subprocess.Popen[str], pid: str) -> None:
    """Guards against a signal to a process that only happens to have the number of an earlier trainer."""
    (tmp_path / "runs" / "OTHER" / "pid").write_text(pid)
    assert hooks.trainers(tmp_path) == {}


def test_sigterm_reaches_our_trainer_and_no_other(tmp_path: Path, trainer: subprocess.Popen[str]) -> None:
    """Guards against a `docker stop` that loses a checkpoint, and against stopping the trainer of another run."""
    (tmp_path / "runs" / "OURS").mkdir()
    parent = start(PARENT, str(tmp_path), TRAINER)
    parent.send_signal(signal.SIGTERM)
    assert parent.communicate(timeout=10)[0].splitlines() == ["earlier handler", str(-signal.SIGTERM)]
    assert trainer.poll() is None


def test_stopped_runs_are_explained(tmp_path: Path) -> None:
    """Guards against a failed run that leaves people to wonder whether days are lost."""
    checkpoints = tmp_path / "runs" / "ANDREA-TINY" / "checkpoints"
    checkpoints.mkdir(parents=True)
    began = time.time() - 10
    (checkpoints.parent / "pid").write_text("1")
    for step in ("000500", "001500"):
        (checkpoints / f"step_{step}.json").write_text("{}")
        (checkpoints / f"step_{step}.state.json").write_text("{}")
    names = ["ANDREA-TINY", "ANDREA-12M"]
    assert hooks.stopped(tmp_path, names, began) == [
        "ANDREA-TINY: saved up to step 1500; unless an error above says otherwise, the same command goes on from there"
    ]
    assert hooks.stopped(tmp_path, names, time.time() + 10) == []  # a trainer of an earlier run
    model = tmp_path / "results" / "ANDREA-TINY" / "model.bin"
    model.parent.mkdir(parents=True)
    model.touch()
    assert hooks.stopped(tmp_path, names, began) == []


def with_engine(engine: str) -> Experiment:
    experiment = load(ROOT / "experiments" / "ANDREA-12M-TRAIN.json")
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, engine=engine))


@pytest.mark.parametrize("problem", ["no NVIDIA driver on this machine", ""])
def test_a_missing_gpu_is_an_error_with_two_ways_out(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    """Guards against a download of gigabytes for a training that cannot begin."""
    monkeypatch.setattr(hooks, "gpu_problem", lambda: problem)
    hooks.require_engines([with_engine("cpu")])
    if not problem:
        hooks.require_engines([with_engine("cuda")])
        return
    with pytest.raises(EngineError) as error:
        hooks.require_engines([with_engine("cpu"), with_engine("cuda")])
    for part in (problem, "locks/cuda13.txt", '"engine": "cpu"', "ANDREA-12M-TRAIN.json", "days"):
        assert part in str(error.value)


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (9, 0)])
def test_a_gpu_without_fp8_is_found_before_the_download(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    """The trainer would say so too, gigabytes later."""
    monkeypatch.setattr(hooks, "gpu_problem", lambda: "")
    monkeypatch.setattr(hooks, "gpu_capability", lambda: capability)
    experiment = load(ROOT / "experiments" / "ANDREA-12M-FP8-TRAIN.json")
    if capability >= (8, 9):
        hooks.require_engines([experiment])
        return
    with pytest.raises(EngineError, match=r"8\.9 or later(.|\n)*8\.6(.|\n)*bf16"):
        hooks.require_engines([experiment])


def lock_of(root: Path) -> Path:
    """A Snakemake lock, as a killed run leaves it."""
    lock = root / ".snakemake" / "locks" / "0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that `unlock` would run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(hooks.subprocess, "run", run)
    return commands


def test_unlock_only_when_nobody_is_alive(tmp_path: Path, unlocked: list[list[str]]) -> None:
    """Guards against two Snakemake runs in one folder because `make tiny` took the lock of a living one."""
    assert hooks.unlock(tmp_path) == 0
    assert unlocked == []
    lock_of(tmp_path)
    hold = f"from andrea.hooks import hold_guard; from pathlib import Path; hold_guard(Path({str(tmp_path)!r}))"
    alive = start(f"{hold}; print('ready', flush=True); import time; time.sleep(60)")
    assert hooks.unlock(tmp_path, patience=0) == 0
    assert unlocked == []
    alive.kill()
    alive.communicate()
    assert hooks.unlock(tmp_path, patience=0) == 0
    assert [command[-1] for command in unlocked] == ["--unlock"]


def test_unlock_leaves_a_living_trainer_alone(
    tmp_path: Path, trainer: subprocess.Popen[str], unlocked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a second trainer beside an orphan that still saves."""
    lock_of(tmp_path)
    assert hooks.unlock(tmp_path, patience=0.3) == 0
    assert unlocked == []
    assert f"kill -TERM {trainer.pid}" in capsys.readouterr().err
