"""The training loop: plan, draw, run, record; then whatever is due at that step.

The engine is called for a part of a window at a time, about `CHUNK_SECONDS` long, so that a signal is honoured soon;
calls end where something is due. Neither changes a bit of the result. At a step, validation comes before samples and
samples before the checkpoint. A stop may cut the first two short: what is due at a step and not on record is done
when the run goes on.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from andrea.batches import Batches
from andrea.checkpoint import Checkpoint
from andrea.engine import Engine, Snapshot
from andrea.evaluate import HeldOut, Rates, evaluate
from andrea.experiment import Experiment
from andrea.firehose import open_firehose
from andrea.recordfile import RecordFile
from andrea.runfiles import History, Record, step_record
from andrea.sampling import Sampler
from andrea.schedule import lrs
from andrea.training.events import Events
from andrea.training.gate import Gate
from andrea.training.log import Log
from andrea.training.nonfinite import nonfinite_error
from andrea.training.pivot import archive_pivot
from andrea.training.position import Position
from andrea.training.signals import Signals, Stop
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
        if self.signals.stop is not None:
            self._note_signal(self.signals.stop)
            self.log.say(f"{self.signals.wish()}: saving step {self.position.step:,}")
            self._save()
        self.writer.wait()
        return self.signals.stop is None

    def _advance(self, target: int) -> None:
        """A few steps: one call of the engine."""
        step, sources = self.position.step, self.position.ahead[: self._size(target)]
        ids = self.batches.draw_steps(sources, self.position.pulls)
        rates = lrs(step, len(sources), self.experiment.train, self.experiment.polish)
        began = time.perf_counter()
        losses, norms = (values.tolist() for values in self.engine.run(ids, rates))
        seconds = (time.perf_counter() - began) / len(sources)
        self._pace = seconds if self._pace is None else 0.5 * (self._pace + seconds)
        number, columns = self.position.window.number, zip(sources, losses, norms, rates.tolist(), strict=True)
        records = [
            step_record(step + i, source, number, loss, norm, lr, 1e3 * seconds)
            for i, (source, loss, norm, lr) in enumerate(columns, 1)
        ]
        self._record(records, sources, losses)
        self.writer.check()
        self.log.progress(self.position.step, losses, ids[0, :, 1:].size / seconds)

    def _record(self, records: list[Record], sources: Sequence[str], losses: list[float]) -> None:
        """Go on past the steps of `records`. EngineError at the first that is not finite, which is the last on record."""
        good = next((i for i, r in enumerate(records) if r["loss"] is None or r["norm"] is None), len(records))
        if good == len(records) and self.position.advance(losses, self.firehose):
            learned = self.firehose.learned()
            records[-1] |= {"firehose": learned} if learned else {}
        self.history.add_steps(records[: good + 1])
        for record in records[:good]:
            if record["norm"] == 0:
                self.log.say(
                    f"step {record['step']:,}: no update, a gradient overflowed (in fp16 the loss scale goes down)"
                )
        if good < len(records):
            self.history.file.flush()
            self.writer.wait()
            raise nonfinite_error(
                records[good], sources[:good], self.position, self.batches, self.sampler.tokenizer, self.writer
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
        if step and step % self.experiment.validation.every == 0 and step not in self.history.losses:
            self._validate()
        sampling = bool(step) and step % self.experiment.samples.every == 0 and step > self.sampled
        due = step % self.experiment.checkpoints.every == 0 or step == target or self._at_pivot()
        asked = self.signals.take_checkpoint()
        if asked:
            self._note_signal(signal.SIGUSR1)
        saving = asked or due
        # An interrupted generator may leave the engine in the middle of something: what will be saved is copied first.
        copy = self.snapshot() if sampling else None
        if sampling:
            self._sample()
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
        train = self.experiment.train
        results = evaluate(
            self.engine, self.heldout, train.batch_size // train.microbatches, lambda: self.signals.stop is not None
        )
        if results is not None:
            self.history.add_validation(self.position.step, results)
            self.log.say(f"step {self.position.step:,}: held-out {_in_words(results)}")

    def _sample(self) -> None:
        try:
            with self.signals.interruptible():
                records = self.sampler.sample(self.engine, self.position.step)
        except Stop:
            return
        self.samples.append(self.gate.score(records))
        self.sampled = self.position.step

    def _note_signal(self, number: int) -> None:
        self.events.note("signal", step=self.position.step, name=signal.Signals(number).name)

    def _save(self, checkpoint: Checkpoint | None = None) -> None:
        """Begin a checkpoint of this step, unless there is one."""
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
