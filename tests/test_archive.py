"""The archive: complete, hashed, without the loss history, and never at the cost of an older one."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from finished_run import STEPS, finished_run, write_model

from andrea.archive import archive
from andrea.errors import DataError, RunError

FILES = {
    "ANDREA-TINY.samples.json",
    "ANDREA-TINY.state.json",
    "final_evaluation.json",
    "model.bin",
    "resolved.json",
    "tokenizer.json",
}


def folder_of(root: Path) -> Path:
    return root / "results" / "ANDREA-TINY" / "archive" / str(STEPS)


def test_archive_is_complete_and_hashed(tmp_path: Path) -> None:
    """Guards against a file that is archived without a hash, or hashed from other bytes than were copied."""
    archive(finished_run(tmp_path), tmp_path)
    folder = folder_of(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == FILES
    for name, facts in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert manifest["sources"]["chitchat"]["licence"] == "MIT"
    assert manifest["made_with"][0]["versions"]["numpy"] == "2.4.6"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


def test_loss_history_is_never_archived(tmp_path: Path) -> None:
    """Guards the rule that no history is archived, also when the run has put a history among its archived files."""
    experiment = finished_run(tmp_path)
    run = tmp_path / "runs" / "ANDREA-TINY"
    (run / "archive" / str(STEPS) / "ANDREA-TINY.loss.json").write_text("[]")
    archive(experiment, tmp_path)
    assert not list((tmp_path / "results").rglob("*loss*"))


def test_again_changes_nothing(tmp_path: Path) -> None:
    """Guards against an archive step that sets its own work aside when it runs a second time, manifest deleted or not."""
    experiment = finished_run(tmp_path)
    archive(experiment, tmp_path)
    folder = folder_of(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "manifest.json").unlink()  # as Snakemake does before it runs the rule again
    archive(experiment, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [str(STEPS)]


@pytest.mark.parametrize("times", [1, 2])
def test_retraining_keeps_the_old_archive(tmp_path: Path, times: int) -> None:
    """Guards against the loss of a published model when its step is trained again with other bytes."""
    experiment = finished_run(tmp_path)
    archive(experiment, tmp_path)
    folder = folder_of(tmp_path)
    first = (folder / "model.bin").read_bytes()
    for number in range(times):
        write_model(tmp_path / "results" / "ANDREA-TINY" / "model.bin", STEPS, value=2.0 + number)
        (folder / "manifest.json").unlink()
        archive(experiment, tmp_path)
    kept = [path for path in folder.parent.iterdir() if path != folder]
    assert len(kept) == times
    assert first in [(path / "model.bin").read_bytes() for path in kept]
    for path in [*kept, folder]:
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=path, check=True)


def test_damaged_archive_is_set_aside_not_repaired_in_place(tmp_path: Path) -> None:
    """Guards against silent mixing: a file that has changed in the archive leaves together with its folder."""
    experiment = finished_run(tmp_path)
    archive(experiment, tmp_path)
    (folder_of(tmp_path) / "tokenizer.json").write_text("{}")
    archive(experiment, tmp_path)
    assert json.loads((folder_of(tmp_path) / "tokenizer.json").read_text()) == {"model": {}}
    assert len(list(folder_of(tmp_path).parent.iterdir())) == 2


def test_earlier_steps_keep_their_model(tmp_path: Path) -> None:
    """Guards the archive of step 40 when the run goes on to step 60: its model stays, though the run has a newer one."""
    archive(finished_run(tmp_path), tmp_path)
    before = (folder_of(tmp_path) / "manifest.json").read_bytes()
    for name in ("data", "results"):
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    (tmp_path / "runs" / "ANDREA-TINY").rename(tmp_path / "old-run")
    longer = finished_run(tmp_path, steps=60)
    (tmp_path / "old-results" / "ANDREA-TINY" / "archive").rename(tmp_path / "results" / "ANDREA-TINY" / "archive")
    (tmp_path / "old-run" / "archive" / "40").rename(tmp_path / "runs" / "ANDREA-TINY" / "archive" / "40")
    archive(longer, tmp_path)
    assert (folder_of(tmp_path) / "manifest.json").read_bytes() == before
    assert (folder_of(tmp_path).parent / "60" / "model.bin").exists()


def test_unfinished_run_is_refused(tmp_path: Path) -> None:
    """Guards against an archive named after a step that the run never reached."""
    experiment = finished_run(tmp_path)
    (tmp_path / "runs" / "ANDREA-TINY" / "archive" / str(STEPS)).rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="must have archived its last step"):
        archive(experiment, tmp_path)


@pytest.mark.parametrize("damage", ["other step", "cut short", "empty", "missing"])
def test_wrong_model_is_refused(tmp_path: Path, damage: str) -> None:
    """Guards against archiving a model that is torn or belongs to another step."""
    experiment = finished_run(tmp_path)
    model = tmp_path / "results" / "ANDREA-TINY" / "model.bin"
    if damage == "other step":
        write_model(model, STEPS - 1)
    elif damage == "missing":
        model.unlink()
    else:
        model.write_bytes(model.read_bytes()[: 20 if damage == "cut short" else 0])
    with pytest.raises(DataError, match=r"model\.bin must be"):
        archive(experiment, tmp_path)
    assert not (folder_of(tmp_path) / "manifest.json").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"sources": []}', '{"sources": {"a": 1}}', "no json"])
def test_hostile_megachat_manifest(tmp_path: Path, content: str) -> None:
    """Guards against a traceback where the data stage's manifest is not what it should be."""
    experiment = finished_run(tmp_path)
    (tmp_path / "data" / "ANDREA-TINY" / "megachat" / "manifest.json").write_text(content)
    with pytest.raises(DataError):
        archive(experiment, tmp_path)
