"""The training proxy when something goes wrong: each error names what, where and the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from proxy_project import Project
from tiny_run import NAME, promised, run_folder, set_experiment

from andrea import checkpoint as ck
from andrea import proxy
from andrea.checkpoint import bin_path, steps_in
from andrea.errors import AndreaError, DataError, EngineError, ExperimentError, StorageError


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


@pytest.mark.parametrize("step", [30, 60])
def test_a_nonfinite_held_out_loss_is_told(project: Project, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of finite loss can leave weights that are of no use, which a validation or the last evaluation sees first.

    JSON cannot hold the number: what came was a traceback of the module json.
    """
    real = FakeEngine.evaluate

    def evaluate(engine: FakeEngine, blocks: Any) -> Any:
        return real(engine, blocks) * (float("nan") if engine.step >= step else 1.0)

    if step == 60:
        set_experiment(project.root, validation={"every": 1000, "blocks": 4})
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "evaluate", evaluate)
        with pytest.raises(
            EngineError, match=r"held-out text of alpha must be finite[\s\S]*nan in (4 of 4|16 of 16) blocks"
        ):
            project.train()
    assert steps_in(project.checkpoints)[-1] == (60 if step == 60 else 20)
    assert project.train() == 0


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
