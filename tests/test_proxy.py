"""The training proxy with an engine that costs nothing: what is written when, stops, resume, refusals, the end of a run."""

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from tiny_run import NAME, make_project, promised, run_folder, set_experiment

from andrea import checkpoint as ck
from andrea import proxy
from andrea.checkpoint import bin_path, manifest_path, steps_in
from andrea.engine import open_engine
from andrea.errors import AndreaError, CheckpointError, DataError, EngineError, ExperimentError, RunError, StorageError
from andrea.recordfile import to_array
from andrea.training import loop

STOPPED = 75
Setup = Callable[[FakeEngine], None]


class Project:
    """A mini project whose engines are fakes; `setup` prepares the next one."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.engine = root, make_project(root), FakeEngine.__new__(FakeEngine)
        self.setup: Setup = lambda engine: None

    def _open(self, experiment: Any, threads: int) -> FakeEngine:
        self.engine = FakeEngine(experiment)
        self.setup(self.engine)
        return self.engine

    def train(self, **options: Any) -> int:
        with pytest.MonkeyPatch.context() as patch:
            if proxy.open_engine is open_engine:  # unless a test has put something else there
                patch.setattr(proxy, "open_engine", self._open)
            return proxy.train(self.path, root=self.root, **options)

    def signal_at(self, step: int, number: int, *, generating: bool = False) -> None:
        """Send this process a signal while the engine is at `step`."""

        def kill(at: int) -> None:
            if at == step:
                os.kill(os.getpid(), number)

        def setup(engine: FakeEngine) -> None:
            setattr(engine, "on_generate" if generating else "on_step", kill)

        self.setup = setup

    @property
    def checkpoints(self) -> Path:
        return run_folder(self.root) / "checkpoints"

    def history(self) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = json.loads((run_folder(self.root) / f"{NAME}.loss.json").read_text())
        return value

    def log(self) -> str:
        return (run_folder(self.root) / "train.log").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    other = Project(tmp_path_factory.mktemp("undisturbed"))
    assert other.train() == 0
    return promised(other.root)


# ------------------------------------------------------------------------------------------ what a whole run leaves


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


def test_end_of_run_samples_go_to_the_archive_only(project: Project) -> None:
    """In samples.json they would make a run that is raised later differ from one that was longer from the start."""
    set_experiment(project.root, train__steps=50)
    project.train()
    samples = json.loads((run_folder(project.root) / f"{NAME}.samples.json").read_text())
    archived = json.loads((run_folder(project.root) / "archive" / "50" / f"{NAME}.samples.json").read_text())
    assert {r["step"] for r in samples} == {20, 40}
    assert archived[:4] == samples
    assert {r["step"] for r in archived[4:]} == {50}


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


# --------------------------------------------------------------------------------------------- damage, and other runs


@pytest.mark.parametrize("damage", ["torn", "flipped", "no manifest", "foreign", "state", "old state", "temporary"])
def test_damage_falls_back_to_the_newest_whole_checkpoint(
    project: Project, undisturbed: dict[str, str], damage: str
) -> None:
    """One line says what was passed over; the run ends with the same bytes."""
    project.train(stop_after=35)
    path = bin_path(project.checkpoints, 35)
    data = bytearray(path.read_bytes())
    if damage == "torn":
        path.write_bytes(data[: len(data) // 3])
    elif damage == "flipped":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif damage == "no manifest":
        manifest_path(path).unlink()
    elif damage == "foreign":
        manifest = json.loads(manifest_path(path).read_text())
        manifest_path(path).write_text(json.dumps(manifest | {"fingerprint": "e" * 64}))
    elif damage == "state":
        ck.state_path(path).write_text("{}")
    elif damage == "old state":
        checkpoint, state, manifest = ck.load(path, len(data) // 12)
        del state["polish"]
        stamp = {"fingerprint": manifest.fingerprint, "versions": {}, "records": manifest.records}
        ck.write(project.checkpoints, checkpoint, state, **stamp)
    else:
        (project.checkpoints / ".step_000040.bin.1.tmp").write_bytes(b"half")
    assert project.train() == 0
    fallen_back = "step_000030.bin, step 30 of 60"
    assert (fallen_back in project.log()) == (damage != "temporary")
    if damage not in ("no manifest", "temporary"):
        assert "passed over step_000035.bin" in project.log()
    assert promised(project.root) == undisturbed


def test_checkpoints_that_are_all_damaged_are_an_error(project: Project) -> None:
    """A silent start from step 0 would look like lost weeks."""
    project.train(stop_after=35)
    for path in project.checkpoints.glob("*.bin"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match="must be usable"):
        project.train()


@pytest.mark.parametrize(
    "text", ["{}", '{"made_with": 3}', '{"made_with": [1]}', '{"made_with": [{"from_step": "a", "versions": {}}]}']
)
def test_a_record_of_versions_that_was_edited_is_named(project: Project, text: str) -> None:
    """Guards against a traceback from a small file that people look into."""
    project.train(stop_after=10)
    (run_folder(project.root) / "versions.json").write_text(text)
    with pytest.raises(DataError, match="what the run was made with"):
        project.train()


@pytest.mark.parametrize("name", ["train.log", f"{NAME}.loss.json", f"{NAME}.state.json", "pid", "halted"])
def test_a_folder_in_place_of_a_run_file_is_named(project: Project, name: str) -> None:
    """Guards against a traceback; nothing else is touched."""
    project.train(stop_after=10)
    path = run_folder(project.root) / name
    path.unlink(missing_ok=True)
    path.mkdir()
    with pytest.raises((DataError, StorageError), match="move it away"):
        project.train()


@pytest.mark.parametrize("file", ["loss", "samples"])
def test_run_files_shorter_than_promised(project: Project, undisturbed: dict[str, str], file: str) -> None:
    """A checkpoint whose history is gone is not used; an older one that still has its records is."""
    project.train(stop_after=45)
    path = run_folder(project.root) / f"{NAME}.{file}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'{"step":')])
    if file == "loss":
        project.train()
        assert "counts on" in project.log()
        assert promised(project.root) == undisturbed
    else:
        path.unlink()
        with pytest.raises(RunError, match="must be usable"):
            project.train()
        path.write_bytes(whole)
        assert project.train() == 0
        assert promised(project.root) == undisturbed


def test_history_past_the_checkpoint_is_cut_and_a_torn_end_repaired(
    project: Project, undisturbed: dict[str, str]
) -> None:
    """After a crash no step may appear twice."""
    project.train(stop_after=45)
    shutil.copytree(project.root / "runs", project.root / "saved")
    project.train(stop_after=58)
    shutil.rmtree(project.checkpoints)
    shutil.copytree(project.root / "saved" / NAME / "checkpoints", project.checkpoints)
    path = run_folder(project.root) / f"{NAME}.loss.json"
    path.write_bytes(path.read_bytes()[:-25])
    assert project.train() == 0
    assert [r["step"] for r in project.history() if "loss" in r] == list(range(1, 61))
    assert promised(project.root) == undisturbed


def test_another_fingerprint_is_put_aside_and_found_again(project: Project, undisturbed: dict[str, str]) -> None:
    """Going back and forth between two learning rates, each run continues where it was."""
    project.train(stop_after=25)
    set_experiment(project.root, train__lr=0.001)
    assert project.train(stop_after=15) == STOPPED
    assert "train.lr " in project.log() and " -> 0.001" in project.log()
    set_experiment(project.root)
    assert project.train() == 0
    assert "step 25 of 60" in project.log()
    assert promised(project.root) == undisturbed
    set_experiment(project.root, train__lr=0.001)
    assert project.train() == 0
    assert "step 15 of 60" in project.log()
    assert promised(project.root) != undisturbed


def test_an_explicit_checkpoint(project: Project, undisturbed: dict[str, str], tmp_path: Path) -> None:
    """Back to a named step of this run, also from a copy elsewhere; one of another run is an error."""
    project.train(stop_after=20)
    shutil.copytree(project.checkpoints, tmp_path / "copy")
    project.train(stop_after=45)
    assert project.train(checkpoint=bin_path(project.checkpoints, 40), stop_after=43) == STOPPED
    assert len([r for r in project.history() if "loss" in r]) == 43
    assert project.train(checkpoint=bin_path(tmp_path / "copy", 20)) == 0
    assert promised(project.root) == undisturbed
    set_experiment(project.root, train__lr=0.001)
    with pytest.raises(CheckpointError, match="must belong to this experiment"):
        project.train(checkpoint=bin_path(tmp_path / "copy", 20))
    assert [path.name for path in (project.root / "runs").iterdir()] == [NAME]
    with pytest.raises(CheckpointError, match="manifest beside it"):
        project.train(checkpoint=tmp_path / "nothing.bin")


def test_steps_below_the_run_are_refused_with_a_way_out(project: Project) -> None:
    """Otherwise a shorter model would silently replace a longer one, or the longer one be published as the shorter."""
    project.train()
    model = (project.root / "results" / NAME / "model.bin").read_bytes()
    set_experiment(project.root, train__steps=55)
    with pytest.raises(RunError, match=r"finished step 60[\s\S]*fresh"):
        project.train()
    assert (project.root / "results" / NAME / "model.bin").read_bytes() == model
    path = bin_path(project.checkpoints, 50)
    assert project.train(checkpoint=path) == 0
    assert struct.unpack("<i", (project.root / "results" / NAME / "model.bin").read_bytes()[:4]) == (55,)


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_nonfinite_loss_names_step_source_and_documents(project: Project) -> None:
    """And leaves the last good checkpoint, the record of what came, and a free lock."""

    def setup(engine: FakeEngine) -> None:
        engine.bad_step = 24

    project.setup = setup
    with pytest.raises(EngineError) as caught:
        project.train()
    text = str(caught.value)
    source = project.history()[-1]["source"]
    assert f"step 24, which read {source}" in text
    assert "'> " in text
    assert str(bin_path(project.checkpoints, 20)) in text
    assert project.history()[-1]["loss"] is None
    assert project.history()[-1]["nonfinite"] == {"loss": "nan", "norm": "nan"}
    assert steps_in(project.checkpoints)[-1] == 20
    project.setup = lambda engine: None
    assert project.train() == 0
    assert [r["step"] for r in project.history() if "loss" in r] == list(range(1, 61))


def test_a_skipped_update_is_said_and_recorded(project: Project) -> None:
    """fp16 leaves out the update of a step whose gradient overflows; unseen, a run could stand still for days."""

    def setup(engine: FakeEngine) -> None:
        engine.skipped_step = 33

    project.setup = setup
    assert project.train() == 0
    said = [
        line for line in (project.root / "runs" / NAME / "train.log").read_text().splitlines() if "no update" in line
    ]
    assert len(said) == 1
    assert "step 33" in said[0]
    assert [r["step"] for r in project.history() if r.get("norm") == 0] == [33]


def test_a_full_disk_while_a_checkpoint_is_written(
    project: Project, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background thread's error must reach the user, and the checkpoint before must stay good."""
    real = ck.write_model

    def full(path: Path, checkpoint: ck.Checkpoint) -> None:
        if checkpoint.step == 30:
            raise StorageError("x must be writable", got="No space left on device", fix="free some")
        real(path, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(ck, "write_model", full)
        with pytest.raises(StorageError, match="No space left"):
            project.train()
    assert steps_in(project.checkpoints)[-1] == 20
    assert project.train() == 0
    assert promised(project.root) == undisturbed


def test_too_little_space_is_told_before_the_first_step(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after hours, at the first checkpoint."""
    usage = shutil.disk_usage(project.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StorageError, match="two checkpoints"):
        project.train()
    assert not hasattr(project.engine, "step")


def edit_tokens_manifest(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / "data" / NAME / "tokens" / "manifest.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda m: m["sources"].pop("beta"), DataError, "no entry for beta"),
        (lambda m: m["sources"]["beta"].update(train={"file": "x", "sha256": 1}), DataError, "x"),
        (lambda m: m["sources"]["beta"]["train"].update(sha256="0" * 64), DataError, "other bytes"),
        (lambda m: m.update(tokenizer_sha256="0" * 64), DataError, "tokenizer_sha256"),
        (lambda m: m.update(vocab_size=9999), DataError, "vocab_size"),
    ],
)
def test_stale_data_is_refused(
    project: Project, change: Callable[[Any], None], error: type[AndreaError], told: str
) -> None:
    """Tokens of another tokenizer train without any complaint, on rubbish."""
    edit_tokens_manifest(project.root, change)
    with pytest.raises(error, match=told):
        project.train()


def test_what_cannot_work_is_told_before_training(project: Project) -> None:
    """A context longer than a source, or a prompt longer than the context, would fail only hours later."""
    set_experiment(project.root, model__context=4000)
    with pytest.raises(DataError, match="at least one block of 4,001 tokens"):
        project.train()
    set_experiment(project.root, samples__prompts=["far too long a prompt for sixteen tokens"])
    with pytest.raises(ExperimentError, match="leave room in the context of 16"):
        project.train()


def test_a_change_of_versions_is_told_and_training_goes_on(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactness is promised per version; a new NumPy must not stop a run, and must not pass in silence."""
    project.train(stop_after=20)
    monkeypatch.setattr(proxy, "made_with", lambda: {"numpy": "99", "code": "new"})
    assert project.train() == 0
    assert "numpy" in project.log().partition("not what the run was made with")[2].splitlines()[0]
    noted = json.loads((run_folder(project.root) / "versions.json").read_text())["made_with"]
    assert [entry["from_step"] for entry in noted] == [0, 20]
    assert noted[1]["versions"] == {"numpy": "99", "code": "new"}
