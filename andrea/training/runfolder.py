"""The run folder that belongs to a fingerprint: runs/<EXP>, with other runs of the same name beside it.

A folder of another fingerprint is neither resumed nor deleted: it is renamed runs/<EXP>.<fingerprint>, and gets its
name back when the experiment returns to it. All renames happen under the folder's lock.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from andrea.errors import DataError, RunError
from andrea.experiment import Experiment
from andrea.files import read_json, storing, sync_folder, write_json
from andrea.fingerprint import Fingerprint, differences, fingerprint
from andrea.training.lock import RunLock

RECORD = "fingerprint.json"


def claim(runs: Path, name: str, mine: Fingerprint, say: Callable[[str], None]) -> RunLock:
    """Lock the run folder of `mine`, creating it or swapping another run out of the way. RunError when it is in use."""
    folder, earlier = runs / name, runs / f"{name}.{mine.short}"
    has_earlier = earlier.is_dir() and _is(mine, fingerprint_of(earlier))
    if has_earlier and not folder.exists():
        _bring_back(earlier, folder, say)
    lock = RunLock(folder)
    try:
        other = fingerprint_of(folder)
        if not _is(mine, other) and (other is not None or has_earlier):
            _set_aside(folder, other, mine, say)
            lock.release()
            if has_earlier:
                _bring_back(earlier, folder, say)
            lock = RunLock(folder)
        if not (folder / RECORD).exists():
            write_json(folder / RECORD, {"fingerprint": mine.digest, **mine.parts})
    except BaseException:
        lock.release()
        raise
    return lock


def free_name(path: Path, suffix: str) -> Path:
    """path.suffix, or path.suffix.2 and so on when that is taken."""
    name, number = path.with_name(f"{path.name}.{suffix}"), 2
    while name.exists():
        name, number = path.with_name(f"{path.name}.{suffix}.{number}"), number + 1
    return name


def fingerprint_of(folder: Path) -> Fingerprint | None:
    """What a run folder says it belongs to; None when no run has begun there. RunError when it cannot be told."""
    if not (folder / RECORD).exists():
        if any((folder / "checkpoints").glob("step_*.bin")):
            raise _unclear(folder, f"checkpoints, but no {RECORD}")
        return None
    try:
        parts: dict[str, Any] = read_json(folder / RECORD, "the run's fingerprint")
    except DataError as cause:
        raise _unclear(folder, cause.got) from cause
    digest = parts.pop("fingerprint", None)
    found = Fingerprint(parts)
    if found.digest != digest:
        raise _unclear(folder, f"a {RECORD} whose hash does not fit its parts")
    return found


def is_of_run(resolved: Mapping[str, Any], folder: Path) -> bool:
    """Whether the run in `folder` made the model that a resolved.json stands beside; not when one of them says nothing."""
    if not (folder / RECORD).is_file():
        return False
    mark = read_json(folder / RECORD, "the run's fingerprint").get("fingerprint")
    return mark is not None and mark == resolved.get("fingerprint")


def stands_at(experiment: Experiment, root: Path) -> int:
    """The step that the run of `experiment`, on the tokens that are there now, was last saved at.

    0 when there is none, or when it cannot be told: the stages and the trainer say what is wrong with such files.
    """
    folder = root / "runs" / experiment.name
    state_file = folder / f"{experiment.name}.state.json"
    tokens = root / "data" / experiment.name / "tokens" / "manifest.json"
    if not state_file.exists() or not tokens.exists():
        return 0
    try:
        state, manifest = read_json(state_file, "the run's state"), read_json(tokens, "the tokens manifest")
        mine = fingerprint(experiment, manifest, manifest["tokenizer_sha256"])
    except (DataError, KeyError, TypeError):
        return 0
    step = state.get("step")
    return step if state.get("fingerprint") == mine.digest and isinstance(step, int) else 0


def _is(mine: Fingerprint, other: Fingerprint | None) -> bool:
    return other is not None and other.digest == mine.digest


def _set_aside(folder: Path, other: Fingerprint | None, mine: Fingerprint, say: Callable[[str], None]) -> None:
    aside = free_name(folder, other.short if other else "unused")
    _rename(folder, aside)
    why = differences(other.parts, mine.parts) if other else "it never began"
    say(f"{folder} was another run ({why}): it is kept as {aside}")


def _bring_back(earlier: Path, folder: Path, say: Callable[[str], None]) -> None:
    _rename(earlier, folder)
    say(f"the experiment is back at an earlier run: {earlier} is {folder} again")


def _rename(old: Path, new: Path) -> None:
    with storing(old):
        os.rename(old, new)
        sync_folder(old.parent)


def _unclear(folder: Path, got: object) -> RunError:
    return RunError(
        f"{folder} must say which run it is, in {RECORD}",
        got=got,
        fix=f"rename the folder to keep it, for instance to {folder}.old, and start again",
    )
