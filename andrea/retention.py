"""Which checkpoints of a run stay, and the removal of the others.

A manifest goes first: without it the rest does not exist, wherever a crash comes. What such a crash leaves is
removed at the next start, but only if its state file says that it is this run's own.
"""

from collections.abc import Mapping
from pathlib import Path

from andrea.checkpoint import bin_path, manifest_path, state_path, steps_in
from andrea.errors import DataError
from andrea.experiment import CheckpointSpec
from andrea.files import read_json, storing


def kept(steps: list[int], spec: CheckpointSpec, losses: Mapping[int, float]) -> set[int]:
    """Of `steps`, those to keep. `losses`: step -> mean validation loss of the steps that had one."""
    steps = sorted(steps)
    keep = set(steps[-spec.keep_last :])
    if spec.keep_every:
        keep.update(step for step in steps if step and step % spec.keep_every == 0)
    rated = [step for step in steps if step in losses]
    if spec.keep_best and rated:
        keep.add(min(rated, key=lambda step: (losses[step], step)))
    return keep


def prune(
    folder: Path, spec: CheckpointSpec, losses: Mapping[int, float], step: int, pinned: frozenset[int] = frozenset()
) -> None:
    """Remove what neither `kept` nor `pinned` names. Checkpoints past `step` are left by an earlier attempt and stay for now."""
    steps = [old for old in steps_in(folder) if old <= step]
    for old in set(steps) - kept(steps, spec, losses) - pinned:
        remove(folder, old)


def remove(folder: Path, step: int) -> None:
    """Remove one checkpoint, manifest first."""
    binary = bin_path(folder, step)
    with storing(folder):
        manifest_path(binary).unlink(missing_ok=True)
        binary.unlink(missing_ok=True)
        state_path(binary).unlink(missing_ok=True)


def clean(folder: Path, fingerprint: str) -> list[Path]:
    """Remove what killed writes and removals have left; returns .bin files without a manifest that are not ours."""
    clean_temporary(folder)
    for state in folder.glob("step_*.state.json"):
        binary = state.with_name(state.name.replace(".state.json", ".bin"))
        if not manifest_path(binary).exists() and _is_ours(state, fingerprint):
            with storing(folder):
                binary.unlink(missing_ok=True)
                state.unlink()
    return sorted(path for path in folder.glob("step_*.bin") if not manifest_path(path).exists())


def clean_temporary(folder: Path) -> None:
    """Remove what a kill in the middle of a write has left in `folder`; only who holds the run's lock may."""
    with storing(folder):
        for temporary in folder.glob(".*.tmp"):
            if not temporary.is_dir():  # a folder is an export's, which nobody's lock guards
                temporary.unlink()


def _is_ours(state: Path, fingerprint: str) -> bool:
    try:
        return read_json(state, "the state of a checkpoint").get("fingerprint") == fingerprint
    except DataError:
        return False
