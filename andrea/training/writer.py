"""The background checkpoint writer: training goes on while a snapshot becomes a checkpoint.

One at a time: whoever brings the next one waits, so that at most one snapshot is in memory beside the engine's own.
The run files are made durable before the manifest that promises their records.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.checkpoint import Checkpoint, write
from andrea.experiment import CheckpointSpec
from andrea.files import write_json
from andrea.recordfile import RecordFile
from andrea.retention import prune
from andrea.training.events import Events


@dataclass(frozen=True)
class RunFiles:
    """The files of a run that its checkpoints promise, and where its checkpoints and newest state go."""

    checkpoints: Path
    state: Path
    records: Mapping[str, RecordFile]


class Writer:
    """`saved` is the step of the last checkpoint that is, or is about to be, on disk; None when there is none.

    The checkpoints of the steps in `pinned` are never removed.
    """

    def __init__(
        self,
        files: RunFiles,
        spec: CheckpointSpec,
        stamp: Mapping[str, Any],
        saved: int | None,
        pinned: frozenset[int],
        events: Events,
    ) -> None:
        self.files, self.spec, self.stamp, self.saved, self.pinned = files, spec, stamp, saved, pinned
        self.events = events
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._job: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, state: Mapping[str, Any], losses: Mapping[int, float]) -> None:
        """Begin to write a checkpoint; returns as soon as the one before is on disk. Raises that one's error."""
        self.wait()
        for file in self.files.records.values():
            file.flush_all()
        counts = {name: file.count for name, file in self.files.records.items()}
        self._job = self._pool.submit(self._write, checkpoint, dict(state), counts, dict(losses))
        self.saved = checkpoint.step

    def check(self) -> None:
        """Raise what went wrong in the background, if anything has; never waits."""
        if self._job is not None and self._job.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is on disk. Raises StorageError when it is not."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Let the thread finish and end it; errors are for `wait`."""
        self._pool.shutdown(wait=True)

    def _write(
        self, checkpoint: Checkpoint, state: dict[str, Any], counts: dict[str, int], losses: dict[int, float]
    ) -> None:
        for file in self.files.records.values():
            file.sync()
        write(self.files.checkpoints, checkpoint, state, records=counts, **self.stamp)
        write_json(self.files.state, state)
        self.events.note("checkpoint", step=checkpoint.step)
        prune(self.files.checkpoints, self.spec, losses, checkpoint.step, self.pinned)
