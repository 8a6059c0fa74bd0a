"""The polish pivot in a run, with bandit and curriculum warm-up: exact wherever it stops.

The engine is a fake: its losses follow from weights and tokens, so a plan that differs anywhere changes the model.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from bandit_run import BANDIT, BASE, PIVOT, POLISH, STOPPED, Project
from fake_engine import FakeEngine
from tiny_run import NAME, promised, set_experiment

from andrea import proxy
from andrea.checkpoint import bin_path, steps_in
from andrea.errors import CheckpointError, RunError
from andrea.experiment import load
from andrea.recordfile import read_records
from andrea.training import loop
from andrea.training.pivot import set_aside


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "open_engine", lambda experiment, threads: FakeEngine(experiment))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run with the pivot in it from the start leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "open_engine", lambda experiment, threads: FakeEngine(experiment))
        whole = Project(tmp_path_factory.mktemp("undisturbed"), polish=POLISH)
        assert whole.train() == 0
        return promised(whole.root)


def test_what_a_pivot_leaves(tmp_path: Path) -> None:
    """A checkpoint, an archive of samples and state, samples that start empty, an unbroken history, a new rate."""
    project = Project(tmp_path, polish=POLISH)
    assert project.train() == 0
    steps = project.steps()
    assert [r["step"] for r in steps] == list(range(1, 61))
    assert {r["source"] for r in steps[:13]} == {"alpha"}
    assert steps[PIVOT]["lr"] == POLISH["lr"]
    assert steps[PIVOT + 20]["lr"] == POLISH["lr"] * POLISH["min_lr_ratio"]
    assert sum(r["source"] == "beta" for r in steps[PIVOT:]) > 0.7 * (60 - PIVOT)
    windows = [r["window"] for r in steps]
    assert windows[12] + 1 == windows[13]
    assert windows[PIVOT - 1] + 1 == windows[PIVOT]
    assert PIVOT in steps_in(project.run / "checkpoints")
    archive = project.run / "archive" / str(PIVOT)
    assert {p.name for p in archive.iterdir()} == {f"{NAME}.samples.json", f"{NAME}.state.json", "polish.json"}
    assert json.loads((archive / f"{NAME}.state.json").read_text())["polish"] is None
    assert project.sampled(f"archive/{PIVOT}") == {20}
    assert project.sampled() == {40, 60}
    assert json.loads((project.run / f"{NAME}.state.json").read_text())["polish"] == POLISH


@pytest.mark.parametrize("stop_after", [0, 5, 12, 13, 14, 24, 30, 31, 32, 40, 59])
def test_resume_is_exact_around_warm_up_and_pivot(tmp_path: Path, undisturbed: dict[str, str], stop_after: int) -> None:
    """Both cut windows, and the pivot changes the policy: places where a state could forget something."""
    project = Project(tmp_path, polish=POLISH)
    assert project.train(stop_after=stop_after) == STOPPED
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_stops_again_and_again(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """A state that loses a little each time would show only after many resumes."""
    project = Project(tmp_path, polish=POLISH)
    for step in range(3, 60, 4):
        assert project.train(stop_after=step) == STOPPED
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_the_length_of_engine_calls_changes_nothing(
    tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are cut by measured time, which no two runs share."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.0)
    project = Project(tmp_path, polish=POLISH)
    assert project.train() == 0
    assert promised(project.root) == undisturbed


@pytest.mark.parametrize("place", ["archive_pivot", "RecordFile.restart", "Position.pivot"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_in_the_middle_of_the_pivot(
    tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, place: str, after: bool
) -> None:
    """Between emptied samples and the next checkpoint the old samples live in the archive alone."""
    module = {"archive_pivot": loop, "RecordFile.restart": loop.RecordFile, "Position.pivot": loop.Position}[place]
    name = place.split(".")[-1]
    real = getattr(module, name)

    def crash(*arguments: Any) -> None:
        if after:
            real(*arguments)
        raise KeyError("crash")

    project = Project(tmp_path, polish=POLISH)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, crash)
        with pytest.raises(KeyError):
            project.train()
    assert project.train() == 0
    assert promised(project.root) == undisturbed


@pytest.mark.parametrize("stop_after", [10, 24, 30, 31])
def test_a_pivot_that_is_written_while_it_lies_ahead(
    tmp_path: Path, undisturbed: dict[str, str], stop_after: int
) -> None:
    """By hand, in the middle of a window that was planned across it: as if it had been there from the start."""
    project = Project(tmp_path)
    assert project.train(stop_after=stop_after) == STOPPED
    project.edit(polish=POLISH)
    assert project.train() == 0
    assert promised(project.root) == undisturbed
    assert not (project.run / "superseded").exists()


def test_a_pivot_that_has_passed_goes_back(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """To the newest checkpoint before it; what was trained past it is moved aside, not lost."""
    project = Project(tmp_path)
    assert project.train() == 0
    plain = promised(project.root)
    old = bin_path(project.run / "checkpoints", 60).read_bytes()
    project.edit(polish=POLISH)
    assert project.train() == 0
    assert promised(project.root) == undisturbed
    log = (project.run / "train.log").read_text()
    assert "step 30 of 60" in log
    assert "the polish section has changed" in log
    aside = project.run / "superseded" / "1"
    assert steps_in(aside)[-1] == 60
    assert bin_path(aside, 60).read_bytes() == old
    assert (aside / "archive" / "60").is_dir()
    assert len(read_records(aside / f"{NAME}.loss.json")) > 60
    project.edit()
    assert project.train() == 0
    assert promised(project.root) == plain


def test_files_that_are_gone_do_not_stop_the_way_back(tmp_path: Path) -> None:
    """Guards against a traceback half way through, when someone has deleted samples or a large file."""
    project = Project(tmp_path)
    assert project.train() == 0
    (project.run / f"{NAME}.samples.json").unlink()
    bin_path(project.run / "checkpoints", 60).unlink()
    project.edit(polish=POLISH)
    aside = set_aside(load(project.path), project.run, PIVOT)
    assert aside is not None
    assert steps_in(aside)[-1] == 60
    assert steps_in(project.run / "checkpoints")[-1] <= PIVOT


def test_an_edited_section_goes_back_to_the_pivot(tmp_path: Path) -> None:
    """A second try at polishing costs the polishing only: the checkpoint at the pivot is kept for it."""
    other = POLISH | {"lr": 0.004}
    expected = Project(tmp_path / "expected", polish=other)
    assert expected.train() == 0
    project = Project(tmp_path / "edited", polish=POLISH, checkpoints__keep_every=0)
    assert project.train() == 0
    set_experiment(project.root, **BASE | {"polish": other, "checkpoints__keep_every": 0})
    assert project.train() == 0
    assert f"step {PIVOT} of 60" in (project.run / "train.log").read_text()
    assert promised(project.root) == promised(expected.root)


def test_without_a_checkpoint_before_it_a_pivot_is_refused(tmp_path: Path) -> None:
    """A silent start from step 0 would look like lost weeks."""
    project = Project(tmp_path)
    assert project.train() == 0
    for step in steps_in(project.run / "checkpoints"):
        if step <= PIVOT:
            bin_path(project.run / "checkpoints", step).with_suffix(".json").unlink()
    project.edit(polish=POLISH)
    with pytest.raises(RunError, match="must be usable"):
        project.train()
    with pytest.raises(CheckpointError, match="before the polish pivot"):
        project.train(checkpoint=bin_path(project.run / "checkpoints", 60))
    project.edit()
    assert project.train() == 0


def test_only_the_polish_section_may_change_under_a_run(tmp_path: Path) -> None:
    """Floors of the bandit itself decide the steps so far: another run."""
    project = Project(tmp_path)
    project.train(stop_after=20)
    project.edit(firehose__bandit=BANDIT | {"floors": {"alpha": 0.2, "beta": 0.1}})
    project.train(stop_after=10)
    assert "was another run" in (project.run / "train.log").read_text()


def test_a_pivot_under_the_fixed_policy_bounds_the_weights(tmp_path: Path) -> None:
    """The pivot does not need the bandit."""
    project = Project(tmp_path, firehose__policy="fixed", polish=POLISH | {"caps": {"alpha": 0.0, "beta": 2.0}})
    assert project.train() == 0
    assert {r["source"] for r in project.steps()[PIVOT:]} == {"beta"}


def test_a_signal_at_the_pivot(tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop and pivot fall on one step."""

    def stopping(experiment: Any, _: int) -> FakeEngine:
        engine = FakeEngine(experiment)
        engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == PIVOT else None
        return engine

    project = Project(tmp_path, polish=POLISH)
    with monkeypatch.context() as patch:
        patch.setattr(proxy, "open_engine", stopping)
        assert project.train() == STOPPED
    assert project.train() == 0
    assert promised(project.root) == undisturbed
