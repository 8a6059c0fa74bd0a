"""The polish pivot: after step `polish.at_step` the same weights go on under other floors, caps and learning rates.

A state says under which polish section it was trained; None is before the pivot, and so is the checkpoint that is
made right at it. A checkpoint fits the experiment when it lies before the pivot, or was trained under this very
section. So the section can be edited at any time: the run goes back to the newest checkpoint that fits, and what the
edit has made obsolete is moved aside, never deleted.
"""

import os
from pathlib import Path
from typing import Any

from andrea.checkpoint import bin_path, manifest_path, state_path, steps_in
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.files import read_json, storing, sync_folder, write_atomic, write_json
from andrea.paths import archived_steps
from andrea.recordfile import read_records, to_array

SECTION = "polish.json"  # marks the archive of a pivot, and says what began there
ASIDE = "superseded"


def misfit(step: int, trained_under: Any, experiment: Experiment) -> str:
    """Why a checkpoint of `step`, trained under that polish section, cannot go on; empty when it can."""
    polish = experiment.section("polish")
    if trained_under is None:
        late = polish is not None and step > polish["at_step"]
        return f"step {step:,}, trained past it without" if late else ""
    return "" if trained_under == polish else f"step {step:,}, trained under another one"


def archive_pivot(experiment: Experiment, folder: Path, step: int) -> None:
    """Copy samples and state of the run to folder/archive/<step>, with the section that begins there."""
    archive, name = folder / "archive" / str(step), experiment.name
    for file in (f"{name}.samples.json", f"{name}.state.json"):
        write_atomic(archive / file, (folder / file).read_bytes())
    write_json(archive / SECTION, experiment.section("polish"))


def rejoin_samples(folder: Path, name: str) -> None:
    """Put the samples that a pivot has archived back before those made since, so that any checkpoint may be chosen."""
    file = folder / f"{name}.samples.json"
    for step in reversed(archived_steps(folder)):
        archive = folder / "archive" / str(step)
        if (archive / SECTION).exists():
            now, earlier = read_records(file), read_records(archive / file.name)
            if earlier and (not now or now[0]["step"] > step):
                write_atomic(file, to_array(earlier + now))


def set_aside(experiment: Experiment, folder: Path, step: int) -> Path | None:
    """Move what an edit of the polish section has made obsolete, all past `step`, to folder/superseded/<n>/.

    Returns that folder, which also gets copies of history and samples; None when nothing is obsolete.
    """
    checkpoints = folder / "checkpoints"
    obsolete = [s for s in steps_in(checkpoints) if s > step and _is_obsolete(checkpoints, s, experiment)]
    if not obsolete:
        return None
    aside = next(p for p in (folder / ASIDE / str(n) for n in range(1, 10**6)) if not p.exists())
    with storing(aside):
        (aside / "archive").mkdir(parents=True)
        for file in (f"{experiment.name}.loss.json", f"{experiment.name}.samples.json"):
            if (folder / file).exists():  # people delete samples; checkpoints from before the first need none
                write_atomic(aside / file, (folder / file).read_bytes())
        for old in obsolete:
            binary = bin_path(checkpoints, old)
            for part in (manifest_path(binary), state_path(binary), binary):
                if part.exists():
                    os.rename(part, aside / part.name)
        for old in archived_steps(folder):
            if old > step:
                os.rename(folder / "archive" / str(old), aside / "archive" / str(old))
        sync_folder(checkpoints)
    return aside


def _is_obsolete(checkpoints: Path, step: int, experiment: Experiment) -> bool:
    try:
        state = read_json(state_path(bin_path(checkpoints, step)), "the state of a checkpoint")
    except DataError:
        return False  # damaged: passed over by name, and left where it is
    return bool(misfit(step, state.get("polish"), experiment))
