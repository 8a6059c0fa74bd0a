"""Where a run goes on: its newest whole checkpoint whose records are all there, or step 0 of a new run.

A checkpoint that is damaged, foreign or ahead of the run files is passed over with a line that says why. A run that
has checkpoints but none of use is an error: a silent start from step 0 would look like lost weeks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea.checkpoint import Checkpoint, Manifest, bin_path, load, manifest_path, state_path, steps_in
from andrea.engine.layout import count, initial_weights
from andrea.errors import CheckpointError, RunError
from andrea.experiment import Experiment
from andrea.files import write_json
from andrea.recordfile import RecordFile
from andrea.runfiles import History, Record
from andrea.training.pivot import misfit
from andrea.training.position import Position
from andrea.window import Firehose

Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """What training begins from. `state` and `manifest` are None at step 0 of a new run; `path` says where it lay."""

    checkpoint: Checkpoint
    state: dict[str, Any] | None
    manifest: Manifest | None
    path: Path | None


@dataclass(frozen=True)
class Finder:
    """Finds the start of a run of `experiment` under `fingerprint`, whose records stand in `history` and `samples`."""

    experiment: Experiment
    fingerprint: str
    history: History
    samples: RecordFile

    def newest(self, folder: Path, say: Say) -> Start:
        """The newest usable checkpoint in `folder`, else a new run when there are none at all."""
        steps = steps_in(folder)
        for step in reversed(steps):
            path = bin_path(folder, step)
            try:
                return self.at(path)
            except CheckpointError as cause:
                say(f"passed over {path.name}: {cause.must}; got {cause.got}")
        if steps:
            raise RunError(
                f"one of the checkpoints in {folder} must be usable",
                got=f"{len(steps)} that are not, named above",
                fix=f"bring the run's files back, or train anew: .venv/bin/andrea fresh {self.experiment.name}",
            )
        return new_run(self.experiment)

    def at(self, path: Path) -> Start:
        """This one checkpoint. CheckpointError when it is damaged, foreign or ahead of the run files."""
        manifest = check_owner(path, self.fingerprint)
        self._check_records(path, manifest)
        checkpoint, state, manifest = load(path, count(self.experiment.shape))
        if (
            state.get("step") != checkpoint.step
            or state.get("fingerprint") != self.fingerprint
            or "polish" not in state
        ):
            raise CheckpointError(
                f"{path} and its state must belong together", got=state.get("step"), fix="use another"
            )
        wrong = misfit(checkpoint.step, state.get("polish"), self.experiment)
        if wrong:
            raise CheckpointError(
                f"{path} must lie before the polish pivot, or be trained under this polish section",
                got=wrong,
                fix="use an earlier checkpoint, or set the polish section back to what it was",
            )
        return Start(checkpoint, state, manifest, path)

    def _check_records(self, path: Path, manifest: Manifest) -> None:
        """The history must reach the step without a gap, and both files must hold what the manifest counts on."""
        found = {
            "history": self.history.file.count_until(manifest.step),
            "samples": self.samples.count_until(manifest.step),
        }
        short = [name for name, promised in manifest.records.items() if found.get(name, 0) < promised]
        if short or self.history.last < manifest.step:
            raise CheckpointError(
                f"the run files must hold the records that {path} counts on: {manifest.records}",
                got=f"{found}, steps up to {self.history.last:,}",
                fix="bring the run's files back, or use an earlier checkpoint",
            )


def new_run(experiment: Experiment) -> Start:
    """Step 0: the initial weights, which follow from the seed."""
    shape = experiment.shape
    weights = initial_weights(shape, experiment.model.init, experiment.train.seed)
    return Start(Checkpoint(0, weights, np.zeros_like(weights), np.zeros_like(weights)), None, None, None)


def check_owner(path: Path, fingerprint: str) -> Manifest:
    """The manifest of a checkpoint of this run. CheckpointError when there is none, or it is another run's."""
    if not manifest_path(path).exists():
        raise CheckpointError(
            f"{path} must have its manifest beside it, {manifest_path(path).name}",
            got="no such file",
            fix="name a step_NNNNNN.bin in the run's checkpoints/; a published model.bin cannot be trained on",
        )
    manifest = Manifest.read(manifest_path(path))
    if manifest.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path} must belong to this experiment on this data (fingerprint {fingerprint[:12]})",
            got=f"fingerprint {manifest.fingerprint[:12]}",
            fix="set the experiment back to what the checkpoint was made with, or leave --checkpoint out",
        )
    return manifest


def check_target(step: int, experiment: Experiment, steps_kept: Sequence[int]) -> None:
    """RunError when a run that stands at `step` has passed `train.steps`: no model is silently replaced by a longer one."""
    wanted = experiment.train.steps
    if step > wanted:
        earlier = [kept for kept in steps_kept if kept <= wanted]
        way = f", or go back: --checkpoint {bin_path(Path('.../checkpoints'), max(earlier))}" if earlier else ""
        raise RunError(
            f"train.steps of {experiment.name} must not lie behind its run, which has finished step {step:,}",
            got=f"train.steps {wanted:,}",
            fix=f"raise it to {step:,} or more, or put the run aside: .venv/bin/andrea fresh {experiment.name}{way}",
        )


def open_position(start: Start, firehose: Firehose, experiment: Experiment) -> Position:
    """Where the run stands, with `firehose` brought there too."""
    sources = list(experiment.sources)
    if start.state is None or start.path is None:
        return Position.first(firehose, sources)
    return Position.from_json(start.state, firehose, sources, state_path(start.path))


def open_files(start: Start, history: History, samples: RecordFile, prompts: int, state: Path) -> list[Record]:
    """Cut the run files back to the start, so that no step appears twice; returns the samples that stay.

    Samples of the very step of which a crash has left less than one for each of the `prompts` are drawn again. Those
    from before a polish pivot do not stay: they are in its archive.
    """
    step, polish = start.checkpoint.step, start.state and start.state["polish"]
    history.cut(step)
    drawn = samples.count_until(step) - samples.count_until(step - 1)
    kept = samples.cut(step - 1 if 0 < drawn < prompts else step, after=polish["at_step"] if polish else -1)
    if start.state is not None:
        write_json(state, start.state)  # a kill may have come between a checkpoint and this copy of its state
    return kept
