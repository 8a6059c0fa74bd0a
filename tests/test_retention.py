"""Retention: what stays, what goes, and what a kill in the middle leaves."""

from pathlib import Path

import numpy as np
import pytest

from andrea.checkpoint import Checkpoint, bin_path, manifest_path, state_path, steps_in, write
from andrea.experiment import CheckpointSpec
from andrea.retention import clean, clean_temporary, kept, prune

MINE = "f" * 64


def save(folder: Path, *steps: int) -> None:
    one = np.ones(3, np.float32)
    for step in steps:
        state = {"step": step, "fingerprint": MINE}
        write(folder, Checkpoint(step, one, one, one), state, fingerprint=MINE, versions={}, records={})


@pytest.mark.parametrize(
    ("spec", "losses", "expected"),
    [
        (CheckpointSpec(100, 2, False, 0), {}, {400, 500}),
        (CheckpointSpec(100, 2, True, 0), {100: 3.0, 200: 1.0, 300: 2.0}, {200, 400, 500}),
        (CheckpointSpec(100, 1, True, 200), {100: 3.0}, {100, 200, 400, 500}),
        (CheckpointSpec(100, 1, True, 0), {200: 1.0, 100: 1.0}, {100, 500}),
        (CheckpointSpec(100, 1, True, 0), {999: 0.1}, {500}),
        (CheckpointSpec(100, 9, False, 0), {}, {0, 100, 200, 300, 400, 500}),
    ],
)
def test_what_is_kept(spec: CheckpointSpec, losses: dict[int, float], expected: set[int]) -> None:
    """The best must be the best of those that are there; step 0 is no periodic one; ties keep the earlier."""
    assert kept([0, 100, 200, 300, 400, 500], spec, losses) == expected


def test_prune_removes_all_three_files_and_spares_what_lies_ahead(tmp_path: Path) -> None:
    """After going back to step 300, the two newest must not count against the one just written."""
    save(tmp_path, 100, 200, 300, 400, 500)
    prune(tmp_path, CheckpointSpec(100, 1, False, 0), {}, 300)
    assert steps_in(tmp_path) == [300, 400, 500]
    assert len(list(tmp_path.iterdir())) == 9


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the first removal, a checkpoint with manifest but without .bin would be chosen at the next start."""
    save(tmp_path, 100, 200)
    removed: list[str] = []
    real = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: (removed.append(self.name), real(self))[1])
    prune(tmp_path, CheckpointSpec(100, 1, False, 0), {}, 200)
    assert removed[0] == "step_000100.json"


def test_clean_removes_our_remains_and_nothing_else(tmp_path: Path) -> None:
    """A .bin that the user has put there is not ours to delete; a torn temporary file is."""
    save(tmp_path, 100, 200, 300)
    for step in (100, 200):
        manifest_path(bin_path(tmp_path, step)).unlink()
    state_path(bin_path(tmp_path, 200)).write_text('{"fingerprint": "another"}')
    (tmp_path / ".step_000400.bin.77.tmp").write_bytes(b"torn")
    (tmp_path / "step_000050.bin").write_bytes(b"the user's")
    assert [path.name for path in clean(tmp_path, MINE)] == ["step_000050.bin", "step_000200.bin"]
    left = {path.name for path in tmp_path.iterdir()}
    assert not any("000100" in name or name.endswith(".tmp") for name in left)
    assert {"step_000050.bin", "step_000200.bin", "step_000300.json", "step_000300.bin"} <= left


def test_a_killed_export_does_not_stop_training(tmp_path: Path) -> None:
    """Its folder, beside the model, looked like a write of ours, and could not be removed as one."""
    (tmp_path / ".export.17.tmp").mkdir()
    (tmp_path / ".model.bin.17.tmp").touch()
    clean_temporary(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".export.17.tmp"]
