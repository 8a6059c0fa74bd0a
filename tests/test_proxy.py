"""The training proxy with an engine that costs nothing: what a whole run leaves, stops and resumes."""

import json
import os
import signal
import struct
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from proxy_project import STOPPED, Project
from tiny_run import NAME, promised, run_folder, set_experiment

from andrea import checkpoint as ck
from andrea import proxy
from andrea.checkpoint import bin_path, steps_in
from andrea.recordfile import to_array
from andrea.training import loop, writer


def test_a_whole_run_leaves_what_the_contract_names(project: Project) -> None:
    """Rules, report and archive read these files by name and field."""
    assert project.train() == 0
    steps = [r for r in project.history() if "validation" not in r]
    assert [r["step"] for r in steps] == list(range(1, 61))
    assert set(steps[0]) == {"step", "source", "window", "loss", "norm", "lr", "ms"}
    validations = [r for r in project.history() if "validation" in r]
    assert [r["step"] for r in validations] == [10, 20, 30, 40, 50, 60]
    assert set(validations[0]["validation"]["alpha"]) == {"nats_per_token", "bits_per_byte"}
    samples = json.loads((run_folder(project.root) / f"{NAME}.samples.json").read_text())
    assert [(r["step"], r["prompt"]) for r in samples[:3]] == [(20, "what the"), (20, ""), (40, "what the")]
    state = json.loads((run_folder(project.root) / f"{NAME}.state.json").read_text())
    assert sum(state["pulls"].values()) == state["step"] == 60
    results = project.root / "results" / NAME
    assert {p.name for p in results.iterdir()} == {"model.bin", "resolved.json", "tokenizer.json"}
    assert (results / "model.bin").read_bytes() == bin_path(project.checkpoints, 60).read_bytes()
    assert struct.unpack("<ii", (results / "model.bin").read_bytes()[:8])[0] == 60
    resolved = json.loads((results / "resolved.json").read_text())
    assert resolved["experiment"]["name"] == NAME
    assert "numpy" in resolved["made_with"][0]["versions"]
    archive = run_folder(project.root) / "archive" / "60"
    assert {p.name for p in archive.iterdir()} == {
        f"{NAME}.samples.json",
        f"{NAME}.state.json",
        "final_evaluation.json",
    }
    final = json.loads((archive / "final_evaluation.json").read_text())
    assert set(final["sources"]["beta"]) == {"tokens", "bytes", "model", "bigram"}
    assert not list(project.root.rglob("*.tmp"))


def test_losses_in_the_history_are_the_engines_own(project: Project) -> None:
    """The bandit and the report must see the very float32 values."""
    losses: list[np.ndarray] = []

    def setup(engine: FakeEngine) -> None:
        real = engine.run

        def run(*arguments: Any) -> Any:
            result = real(*arguments)
            losses.append(result[0].copy())
            return result

        engine.run = run  # type: ignore[method-assign]

    project.setup = setup
    project.train()
    written = [r["loss"] for r in project.history() if "loss" in r]
    assert np.array(written, np.float32).tobytes() == np.concatenate(losses).tobytes()
    assert all(float(np.float32(loss)) == loss for loss in written)


def test_a_snapshot_on_its_way_to_the_disk_is_left_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snapshots share their memory: on a slow disk a checkpoint could get numbers of a later step under a right hash."""
    set_experiment(project.root, samples__every=5, samples__halt_after=0)
    real, written = ck.write, []

    def slowly(folder: Path, checkpoint: ck.Checkpoint, *arguments: Any, **options: Any) -> None:
        vectors = (checkpoint.weights, checkpoint.m, checkpoint.v)
        before = [vector.copy() for vector in vectors]
        time.sleep(0.05)
        written.append(all(map(np.array_equal, vectors, before)))
        real(folder, checkpoint, *arguments, **options)

    monkeypatch.setattr(writer, "write", slowly)
    assert project.train() == 0
    assert len(written) == 7 and all(written)


def test_end_of_run_samples_go_to_the_archive_only(project: Project) -> None:
    """In samples.json they would make a run that is raised later differ from one that was longer from the start."""
    set_experiment(project.root, train__steps=50)
    project.train()
    samples = json.loads((run_folder(project.root) / f"{NAME}.samples.json").read_text())
    archived = json.loads((run_folder(project.root) / "archive" / "50" / f"{NAME}.samples.json").read_text())
    assert {r["step"] for r in samples} == {20, 40}
    assert archived[:4] == samples
    assert {r["step"] for r in archived[4:]} == {50}
    scores = [r["coherence"] for r in archived]
    assert all(0 <= score <= 100 for score in scores), "the last samples are scored like all others"
    log = (run_folder(project.root) / "train.log").read_text()
    assert f"samples of step 50 score {fmean(scores[4:]):.0f} of 100 for coherence" in log


def test_the_last_round_is_scored_once_when_it_was_due_anyway(project: Project) -> None:
    """Guards the end at a step that has its samples already: they are archived as they are, and their score is told."""
    set_experiment(project.root, train__steps=40)
    project.train()
    archived = json.loads((run_folder(project.root) / "archive" / "40" / f"{NAME}.samples.json").read_text())
    assert [r["step"] for r in archived] == [20, 20, 40, 40]
    assert "samples of step 40 score" in (run_folder(project.root) / "train.log").read_text()


def test_retention_in_a_run(project: Project) -> None:
    """The last two and the best stay, and each of them is whole."""
    project.train()
    means = {
        r["step"]: np.mean([v["nats_per_token"] for v in r["validation"].values()])
        for r in project.history()
        if "validation" in r
    }
    kept = steps_in(project.checkpoints)
    assert set(kept) == {50, 60, min(means, key=lambda step: means[step])}
    for step in kept:
        ck.load(bin_path(project.checkpoints, step), ck.read(bin_path(project.checkpoints, step)).weights.size)


# --------------------------------------------------------------------------------------------------- stop and resume


@pytest.mark.parametrize("stop_after", [0, 1, 9, 10, 11, 20, 33, 59])
def test_resume_from_any_step_is_exact(project: Project, undisturbed: dict[str, str], stop_after: int) -> None:
    """In a window, at its end, at a due step and off it: the same bytes."""
    assert project.train(stop_after=stop_after) == STOPPED
    assert steps_in(project.checkpoints)[-1] == stop_after
    assert len([r for r in project.history() if "loss" in r]) == stop_after
    assert not (project.root / "results").exists()
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_stops_at_every_third_step(project: Project, undisturbed: dict[str, str]) -> None:
    """A state that loses a little each time would show only after many resumes."""
    for step in range(3, 60, 3):
        assert project.train(stop_after=step) == STOPPED
    assert project.train() == 0
    assert promised(project.root) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("step", [1, 17, 20, 60])
def test_stop_signals(project: Project, undisturbed: dict[str, str], number: int, step: int) -> None:
    """Saved at the end of the engine call that was under way, due or not; handlers are put back."""
    before = signal.getsignal(number)
    project.signal_at(step, number)
    assert project.train() == STOPPED
    assert signal.getsignal(number) == before
    stopped_at = steps_in(project.checkpoints)[-1]
    assert step <= stopped_at <= step + 10
    project.setup = lambda engine: None
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_a_stop_while_samples_are_drawn_does_not_wait(project: Project, undisturbed: dict[str, str]) -> None:
    """Long samples on a CPU take minutes; they are drawn again on resume, and are the same."""
    project.signal_at(40, signal.SIGTERM, generating=True)
    assert project.train() == STOPPED
    assert steps_in(project.checkpoints)[-1] == 40
    samples = json.loads((run_folder(project.root) / f"{NAME}.samples.json").read_text())
    assert {r["step"] for r in samples} == {20}
    project.setup = lambda engine: None
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_samples_of_the_step_that_a_crash_has_torn_are_drawn_again(
    project: Project, undisturbed: dict[str, str]
) -> None:
    """Saved without samples because of a stop, resumed, drawn, and then a power cut: one of two prompts is left."""
    project.signal_at(40, signal.SIGTERM, generating=True)
    assert project.train() == STOPPED
    path = run_folder(project.root) / f"{NAME}.samples.json"
    records = json.loads(path.read_text())
    path.write_bytes(to_array([*records, {"step": 40, "prompt": "what the", "text": "", "raw": "", "tokens": 0}]))
    project.setup = lambda engine: None
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_a_stop_during_validation_does_not_wait(project: Project, undisturbed: dict[str, str]) -> None:
    """The rest of it is skipped, no half record stands in the history, and all of it is done on resume."""

    def setup(engine: FakeEngine) -> None:
        real = engine.evaluate

        def evaluate(blocks: Any) -> Any:
            if engine.step == 30:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(blocks)

        engine.evaluate = evaluate  # type: ignore[method-assign]

    project.setup = setup
    assert project.train() == STOPPED
    assert [r["step"] for r in project.history() if "validation" in r] == [10, 20]
    assert steps_in(project.checkpoints)[-1] == 30
    project.setup = lambda engine: None
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_a_stop_at_the_start_or_the_end_is_obeyed_at_once(
    project: Project, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the engine compiles there is nothing to save, and the final evaluation can be done again."""
    for name in ("open_engine", "evaluate_final"):
        with monkeypatch.context() as patch:
            patch.setattr(proxy, name, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            assert project.train() == STOPPED
        assert not (project.root / "results").exists()
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_usr1_makes_a_checkpoint_and_goes_on(project: Project, undisturbed: dict[str, str]) -> None:
    """And changes nothing."""
    project.signal_at(13, signal.SIGUSR1)
    saved: list[int] = []
    real = ck.write

    def note(folder: Path, checkpoint: ck.Checkpoint, *arguments: Any, **options: Any) -> Any:
        saved.append(checkpoint.step)
        return real(folder, checkpoint, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("andrea.training.writer.write", note)
        patch.setattr(loop, "CHUNK_SECONDS", 0.0)
        assert project.train() == 0
    assert saved == [0, 10, 13, 20, 30, 40, 50, 60]
    assert promised(project.root) == undisturbed


def test_the_length_of_engine_calls_changes_nothing(
    project: Project, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are cut by measured time, which no two runs share."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.0)
    assert project.train() == 0
    assert project.engine.calls == [1] * 60
    assert promised(project.root) == undisturbed


def test_raising_steps_equals_a_longer_run(project: Project, undisturbed: dict[str, str]) -> None:
    """A final checkpoint in a window, off the due steps, must leave no trace."""
    for steps in (7, 25, 41):
        set_experiment(project.root, train__steps=steps)
        assert project.train() == 0
    set_experiment(project.root)
    assert project.train() == 0
    assert promised(project.root) == undisturbed
    assert {p.name for p in (run_folder(project.root) / "archive").iterdir()} == {"7", "25", "41", "60"}


def test_a_finished_run_may_be_asked_again(project: Project, undisturbed: dict[str, str]) -> None:
    """Snakemake does so when model.bin is missing."""
    project.train()
    (project.root / "results" / NAME / "model.bin").unlink()
    assert project.train() == 0
    assert project.engine.calls == []
    assert promised(project.root) == undisturbed
