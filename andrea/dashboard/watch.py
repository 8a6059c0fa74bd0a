"""One run as its files show it now. Reading is incremental and bounded, so that a look takes milliseconds."""

import os
from pathlib import Path
from typing import NamedTuple

from andrea.checkpoint import steps_in
from andrea.dashboard.happened import Happened
from andrea.dashboard.history import History
from andrea.dashboard.samples import Samples
from andrea.dashboard.tail import BUDGET, Tail
from andrea.errors import RunError
from andrea.experiment import SUFFIX
from andrea.hooks import is_locked
from andrea.paths import archived_steps
from andrea.training.events import EVENTS
from andrea.training.runfolder import RECORD

_LOSS, _SAMPLES = ".loss.json", ".samples.json"


class State(NamedTuple):
    """`name` is one of waiting, starting, training, finishing, finished, stopped, halted, failed, died, idle, gone."""

    name: str
    text: str


class Watch:
    """The run in `folder`. `version` grows with everything that `refresh` finds changed."""

    def __init__(self, folder: Path, name: str, budget: int = BUDGET) -> None:
        self.folder, self.name, self.version, self._budget = folder, name, 0, budget
        self.history, self.happened = History(), Happened()
        self._loss = self._tail(f"{name}{_LOSS}", self.history)
        self._events = self._tail(EVENTS, self.happened, strict=False)  # a power cut may have torn a line amidst it
        self._samples: dict[Path, tuple[Tail, Samples]] = {}
        self._seen = False
        self.state, self.kept = State("waiting", ""), list[int]()

    def refresh(self) -> None:
        """Read what is new."""
        before = (self.state, self.kept, list(self._samples))
        self._find_samples()
        changed = [tail.read() for tail in self._tails]
        self.kept = steps_in(self.folder / "checkpoints")
        self.state = self._state()
        if any(changed) or before != (self.state, self.kept, list(self._samples)):
            self.version += 1

    @property
    def complete(self) -> bool:
        """Whether all that there is has been read."""
        return all(tail.complete for tail in self._tails)

    @property
    def troubles(self) -> list[str]:
        """What of the run's files cannot be read, for people."""
        return [tail.trouble for tail in self._tails if tail.trouble]

    @property
    def written(self) -> float:
        """When the history was added to last, Unix time; 0 when there is none."""
        return self._loss.written if self._loss.exists else 0.0

    def samples(self) -> Samples:
        """Of all archives and the run itself, each step once: the newest file that has it wins."""
        joined = Samples()
        for _, found in self._samples.values():
            joined.update(found)
        return joined

    def resident(self) -> int | None:
        """Bytes of memory that the trainer's process has now; None when that cannot be told here."""
        pid = self.happened.begun.pid
        if self.state.name not in ("training", "finishing") or not pid:
            return None
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def _tails(self) -> list[Tail]:
        return [self._loss, self._events, *(tail for tail, _ in self._samples.values())]

    def _tail(self, name: str, keeper: History | Happened | Samples, *, strict: bool = True) -> Tail:
        return Tail(self.folder / name, keeper.take, keeper.forget, self._budget, strict=strict)

    def _find_samples(self) -> None:
        """One reader for each file of samples: those of the archives in order, then the run's own."""
        file = f"{self.name}{_SAMPLES}"
        archives = [self.folder / "archive" / str(step) for step in archived_steps(self.folder)]
        paths = [folder / file for folder in (*archives, self.folder)]
        if paths != list(self._samples):
            self._samples = {path: self._samples.get(path) or self._reader(path) for path in paths}

    def _reader(self, path: Path) -> tuple[Tail, Samples]:
        samples = Samples()
        return self._tail(str(path.relative_to(self.folder)), samples), samples

    def _state(self) -> State:
        if not self.folder.is_dir():
            if self._seen:
                return State("gone", f"{self.folder} is gone: it was deleted or renamed. This page waits for it.")
            return State("waiting", f"{self.folder} is not there yet: the run has not begun. This page waits for it.")
        self._seen = True
        last, reason = self.happened.last, self.happened.reason
        if self._held():
            return self._at_work(last)
        if last in _ENDS:
            return State(last, _ENDS[last].format(reason=reason or "as asked"))
        if last:
            return State("died", "Ended without a word: killed, or the power failed. The same command goes on.")
        if self.history.last:
            return State("idle", "No trainer is at work.")
        return State("waiting", "The run has not begun. This page waits for it.")

    def _at_work(self, last: str) -> State:
        if not last or last in _ENDS:
            return State("starting", "Checks the data and opens the engine.")
        if self.history.last >= self.happened.begun.steps > 0:
            return State("finishing", "All steps are done: final evaluation.")
        return State("training", "")

    def _held(self) -> bool:
        """Whether a trainer holds the run folder's lock."""
        lock = self.folder / "lock"
        try:
            return lock.is_file() and is_locked(lock)
        except OSError:  # no right to read it, or it vanished just now
            return False


_ENDS = {
    "finished": "The model is published.",
    "stopped": "Stopped with a checkpoint ({reason}); the same command goes on.",
    "halted": "Halted with a checkpoint: {reason}",
    "failed": "Ended by an error: {reason}",
}


def find_run(target: str, experiment: Path, root: Path) -> tuple[Path, str]:
    """Run folder and experiment name of a run folder, or of an experiment whose file would be `experiment`.

    The run need not have begun. RunError when neither is there.
    """
    folder = Path(target)
    if folder.is_dir():
        named = sorted(path.name.removesuffix(_LOSS) for path in folder.glob(f"*{_LOSS}"))
        if named or (folder / RECORD).exists():
            return folder, named[0] if named else folder.resolve().name.split(".")[0]
    name = experiment.name.removesuffix(".json").removesuffix(SUFFIX)
    folder = root / "runs" / name
    if not experiment.is_file() and not folder.is_dir():
        known = sorted(path.name for path in (root / "runs").glob("*") if path.is_dir())
        raise RunError(
            "the dashboard needs an experiment or a run folder",
            got=f"{target}: neither {experiment} nor {folder} is there",
            fix=f"name one of the runs here: {', '.join(known) or 'none yet'}; or an experiment: tiny",
        )
    return folder, name
