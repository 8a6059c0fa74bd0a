"""The training proxy among damaged files and other runs: what it passes over, puts aside or refuses."""

import json
import shutil
import struct
from pathlib import Path

import pytest
from proxy_project import STOPPED, Project
from tiny_run import NAME, promised, run_folder, set_experiment

from andrea import checkpoint as ck
from andrea.checkpoint import bin_path, manifest_path
from andrea.errors import CheckpointError, DataError, RunError, StorageError


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


def test_a_stray_half_of_a_model_is_removed_at_the_next_start(project: Project) -> None:
    """A kill during publishing left a hidden file of a gigabyte that nobody would ever see."""
    stray = project.root / "results" / NAME / ".model.bin.77.tmp"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half")
    project.train(stop_after=5)
    assert not stray.exists()


def test_a_stop_before_the_first_step_is_no_step(project: Project) -> None:
    """--stop-after -1 was taken as 0."""
    with pytest.raises(RunError, match="0 or more"):
        project.train(stop_after=-1)
    assert not run_folder(project.root).exists()
