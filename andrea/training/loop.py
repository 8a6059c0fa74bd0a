"""The training loop: plan, draw, run, record; then whatever is due at that step.

The engine is called for a part of a window at a time, about `CHUNK_SECONDS` long, so that a signal is honoured soon;
calls end where something is due. Neither changes a bit of the result. Between two calls a card waits, so that only what
the next one needs is done there: its plan, and its first batch. What the last one has left to write, and the other
batches, have time when the next steps are under way. At a step, validation comes before samples and samples before the
checkpoint; a card works on the first two at the same time. A stop may cut both short: what is due at a step and not on
record is done when the run goes on.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from andrea.batches import Batches
from andrea.checkpoint import Checkpoint
from andrea.engine import Engine, Snapshot
from andrea.evaluate import HeldOut, Rates, evaluate
from andrea.experiment import Experiment
from andrea.firehose import open_firehose
from andrea.recordfile import RecordFile
from andrea.runfiles import History, Record
from andrea.sampling import Sampler
from andrea.schedule import lrs
from andrea.training.events import Events
from andrea.training.gate import Gate
from andrea.training.log import Log
from andrea.training.nonfinite import nonfinite_error
from andrea.training.pivot import archive_pivot
from andrea.training.position import Position
from andrea.training.signals import Signals, Stop
from andrea.training.steps import Steps
from andrea.training.writer import Writer
from andrea.window import Firehose

CHUNK_SECONDS = 0.7


@dataclass
class Trainer:
    """A run under way. `sampled` is the last step that has samples on record."""

    experiment: Experiment
    engine: Engine
    batches: Batches
    firehose: Firehose
    position: Position
    heldout: Mapping[str, HeldOut]
    sampler: Sampler
    gate: Gate
    history: History
    samples: RecordFile
    sampled: int
    writer: Writer
    signals: Signals
    log: Log
    events: Events
    fingerprint: str
    _pace: float | None = field(default=None, init=False)  # seconds per step, as measured
    _unwritten: tuple[Steps, bool] | None = field(default=None, init=False)  # the last steps; whether a window ended
    _copy: Snapshot | None = field(default=None, init=False)  # the last one; its memory is used again

    def run(self, target: int) -> bool:
        """Train until step `target` is finished and saved; False when a signal stopped it, also with a checkpoint.

        Raises Halt, with a checkpoint too, when the coherence gate has seen enough.
        """
        self.log.begin_progress(self.experiment.name, self.experiment.train.steps, self.position.step)
        self._settle(target)
        while self.position.step < target and self.signals.stop is None:
            if self._at_pivot():
                self._pivot()
            self._advance(target)
            self._settle(target)
        self._write_down()
        if self.signals.stop is not None:
            self._note_signal(self.signals.stop)
            self.log.say(f"{self.signals.wish()}: saving step {self.position.step:,}")
            self._save()
        self.writer.wait()
        return self.signals.stop is None

    def _advance(self, target: int) -> None:
        """A few steps: one call of the engine."""
        step, sources = self.position.step, self.position.ahead[: self._size(target)]
        rates = lrs(step, len(sources), self.experiment.train, self.experiment.polish)
        began = time.perf_counter()
        losses, norms = (values.tolist() for values in self.engine.run(self._draw(sources), rates))
        seconds = (time.perf_counter() - began) / len(sources)
        self._pace = seconds if self._pace is None else 0.5 * (self._pace + seconds)
        self._take(Steps(step, self.position.window.number, sources, losses, norms, rates.tolist(), seconds))

    def _draw(self, sources: Sequence[str]) -> Iterator[NDArray[np.int32]]:
        """The batches of the next steps. When a card has got all of them it computes for a while: there is time for the rest."""
        pulls, whole = self.position.pulls, len(sources) == len(self.position.window.sources)
        yield from self.batches.draw_steps(sources, pulls)
        self._write_down()
        if whole:
            self.batches.touched(sources, pulls)  # the firehose will ask for it
        self.batches.make_ready(pulls | {source: pulls[source] + sources.count(source) for source in set(sources)})

    def _take(self, steps: Steps) -> None:
        """Go on past `steps`; their records wait. EngineError at the first that is not finite, which is the last on record."""
        self._write_down()
        if steps.good < len(steps.losses):
            self._give_up(steps)
        full = self.position.advance(steps.losses, self.firehose)
        self._unwritten = steps, full

    def _write_down(self) -> None:
        """What the last steps have left to write: their records, and the progress line."""
        if self._unwritten is None:
            return
        (steps, full), self._unwritten = self._unwritten, None
        records, train = steps.records(), self.experiment.train
        if full and (learned := self.firehose.learned()):
            records[-1]["firehose"] = learned
        self._record(records)
        self.writer.check()
        tokens = train.batch_size * self.experiment.model.context
        self.log.progress(steps.before + len(records), steps.losses, tokens / steps.seconds)

    def _record(self, records: list[Record]) -> None:
        self.history.add_steps(records)
        for record in records:
            if record["norm"] == 0:
                self.log.say(
                    f"step {record['step']:,}: no update, a gradient overflowed (in fp16 the loss scale goes down)"
                )

    def _give_up(self, steps: Steps) -> NoReturn:
        records, good = steps.records(), steps.good
        self._record(records[: good + 1])
        self.history.file.flush()
        self.writer.wait()
        raise nonfinite_error(
            records[good], steps.sources[:good], self.position, self.batches, self.sampler.tokenizer, self.writer
        )

    def _size(self, target: int) -> int:
        """Steps of the next call: until something is due, and as many as fit the time. The window may end before."""
        step, e = self.position.step, self.experiment
        intervals = (e.validation.every, e.samples.every, e.checkpoints.every)
        fitting = int(CHUNK_SECONDS / max(self._pace, 1e-6)) if self._pace is not None else 1
        ends = [target, e.polish.at_step] if e.polish and step < e.polish.at_step else [target]
        return min(max(1, fitting), *(end - step for end in ends), *(every - step % every for every in intervals))

    def _settle(self, target: int) -> None:
        """Do what is due at the step that has just been finished, or at which the run goes on."""
        step = self.position.step
        sampling = bool(step) and step % self.experiment.samples.every == 0 and step > self.sampled
        texts = self.sampler.begin(self.engine, step) if sampling else None  # a card writes them while it validates
        if step and step % self.experiment.validation.every == 0 and step not in self.history.losses:
            self._validate()
        due = step % self.experiment.checkpoints.every == 0 or step == target or self._at_pivot()
        asked = self.signals.take_checkpoint()
        if asked:
            self._note_signal(signal.SIGUSR1)
        saving = asked or due
        # An interrupted generator may leave the engine in the middle of something: what will be saved is copied first.
        copy = self.snapshot() if texts else None
        if texts:
            self._sample(texts)
        babbling = self.gate.babbling()
        if saving or babbling or self.signals.stop is not None:
            self._save(copy)
        if babbling:
            self.writer.wait()
            raise self.gate.halt()

    def _at_pivot(self) -> bool:
        polish = self.experiment.polish
        return polish is not None and self.position.polish is None and self.position.step == polish.at_step

    def _pivot(self) -> None:
        """Put samples and state of the steps so far in an archive, and go on under the polish section."""
        e, step = self.experiment, self.position.step
        after = open_firehose(e, self.batches, polished=True)
        self.samples.flush()
        self.writer.wait()
        archive_pivot(e, self.writer.files.state.parent, step)
        self.samples.restart()
        self.gate.recall([])
        self.position.pivot(e.section("polish"), self.firehose, after)
        self.firehose = after
        self.events.note("pivot", step=step)
        self.log.say(f"step {step:,}: polish pivot; samples and state so far are in archive/{step}")

    def _validate(self) -> None:
        self._write_down()
        train = self.experiment.train
        results = evaluate(
            self.engine, self.heldout, train.batch_size // train.microbatches, lambda: self.signals.stop is not None
        )
        if results is not None:
            self.history.add_validation(self.position.step, results)
            self.log.say(f"step {self.position.step:,}: held-out {_in_words(results)}")

    def _sample(self, texts: Callable[[], list[Record]]) -> None:
        try:
            with self.signals.interruptible():
                records = texts()
        except Stop:
            return
        self.samples.append(self.gate.score(records))
        self.sampled = self.position.step

    def _note_signal(self, number: int) -> None:
        self.events.note("signal", step=self.position.step, name=signal.Signals(number).name)

    def _save(self, checkpoint: Checkpoint | None = None) -> None:
        """Begin a checkpoint of this step, unless there is one; what it promises is on record."""
        self._write_down()
        if self.writer.saved != self.position.step:
            state = self.position.to_json(self.firehose, self.fingerprint) | {"engine": self.engine.state()}
            self.writer.save(checkpoint or self.snapshot(), state, self.history.losses)

    def snapshot(self) -> Checkpoint:
        """A copy of the engine's state at the step that has just been finished."""
        self.writer.wait()  # the memory of the last copy may still be on its way to the disk
        self._copy = copy = self.engine.snapshot(self._copy)
        assert copy.step == self.position.step, f"engine at step {copy.step}, loop at {self.position.step}"
        return Checkpoint(copy.step, copy.weights, copy.m, copy.v)


def _in_words(results: Mapping[str, Rates]) -> str:
    mean = float(np.mean([rates["nats_per_token"] for rates in results.values()]))
    each = ", ".join(f"{source} {rates['bits_per_byte']:.3f}" for source, rates in results.items())
    return f"loss {mean:.4f} nats/token; bits/byte: {each}"
