"""A run is stopped and goes on: SIGTERM to Snakemake alone, SIGKILL to Snakemake alone."""

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from micro_project import NAME, Micro

from andrea.checkpoint import steps_in
from andrea.hooks import trainers

SECONDS = 180.0  # only a run that hangs waits so long


def wait_for(condition: Callable[[], bool], micro: Micro) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, (micro.folder / "snakemake.log").read_text()[-3000:]
        time.sleep(0.05)


def history(micro: Micro) -> list[int]:
    """Steps on record."""
    records = json.loads((micro.run_folder / f"{NAME}.loss.json").read_text())
    return [record["step"] for record in records if "loss" in record]


def start_training(micro: Micro) -> subprocess.Popen[str]:
    """Snakemake with a trainer that has made some steps; the caller ends it."""
    before = history(micro)[-1]
    process = micro.start("--cores", "1", "train_micro")
    wait_for(lambda: bool(trainers(micro.folder)) and history(micro)[-1] > before + 5, micro)
    return process


@pytest.fixture
def long_run(finished: Micro, tmp_path: Path) -> Micro:
    """The finished run, asked for more steps than a test can wait for."""
    micro = finished.copy(tmp_path / "project")
    micro.edit(lambda value: value["train"].update(steps=10_000_000))
    return micro


def test_stop_and_go_on(long_run: Micro) -> None:
    """Guards against lost steps and orphans: SIGTERM saves, SIGKILL leaves a lock that `unlock` removes, and all steps count."""
    micro, checkpoints = long_run, long_run.run_folder / "checkpoints"

    process = start_training(micro)
    process.send_signal(signal.SIGTERM)  # to Snakemake only, as `docker stop` does
    assert process.wait(timeout=SECONDS) == 1
    saved = steps_in(checkpoints)[-1]
    assert trainers(micro.folder) == {}
    assert saved == history(micro)[-1]
    said = (micro.folder / "snakemake.log").read_text()
    assert f"{NAME}: saved up to step {saved}; " in said

    process = start_training(micro)
    process.kill()
    process.wait()
    wait_for(lambda: not trainers(micro.folder) and steps_in(checkpoints)[-1] == history(micro)[-1], micro)
    assert steps_in(checkpoints)[-1] > saved
    locked = micro.snakemake("--cores", "1", "train_micro")
    assert locked.returncode == 1
    assert "--unlock" in locked.stdout

    code = "import sys; from andrea.hooks import unlock; sys.exit(unlock())"
    subprocess.run([sys.executable, "-c", code], cwd=micro.folder, check=True, capture_output=True)
    last = steps_in(checkpoints)[-1] + 3
    micro.edit(lambda value: value["train"].update(steps=last))
    micro.grow()
    assert struct.unpack("<i", (micro.results / "model.bin").read_bytes()[:4]) == (last,)
    assert history(micro) == list(range(1, last + 1))


def test_ctrl_c_saves(long_run: Micro) -> None:
    """Guards against a Ctrl-C, which reaches the whole process group at once, that ends the trainer before it has saved."""
    process = start_training(long_run)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=SECONDS) == 1
    assert trainers(long_run.folder) == {}
    steps = history(long_run)
    assert steps_in(long_run.run_folder / "checkpoints")[-1] == steps[-1]
    assert all(b == a + 1 for a, b in itertools.pairwise(steps))
    assert long_run.planned() == {"train", "archive", "report"}  # neither locked nor incomplete
