"""The training proxy: starts or resumes a run, lets the loop train it, and publishes the model at its end.

Everything that a run needs is put together here, in an order in which nothing is lost wherever it stops: the lock
before any file is touched, the run files cut back before the loop may append, the model after everything else.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from andrea.batches import Batches
from andrea.checkpoint import bin_path, size_of, steps_in
from andrea.engine import Engine, open_engine
from andrea.engine.arena import require_memory
from andrea.errors import RunError
from andrea.estimate import outlook
from andrea.evaluate import hold_out
from andrea.experiment import Experiment, load
from andrea.files import require_free, storing, write_atomic
from andrea.fingerprint import fingerprint
from andrea.firehose import open_firehose
from andrea.paths import short_name
from andrea.recordfile import RecordFile
from andrea.retention import clean, clean_temporary, prune
from andrea.runfiles import History
from andrea.sampling import Sampler
from andrea.training.data import TrainingData, open_data
from andrea.training.events import EVENTS, Events
from andrea.training.finish import archive_run, evaluate_final, publish
from andrea.training.gate import EXIT_HALTED, HALTED, Gate, Halt, known_words
from andrea.training.log import Log
from andrea.training.loop import Trainer
from andrea.training.pivot import rejoin_samples, set_aside
from andrea.training.record import VERSIONS, changes, made_with, note_versions, read_versions
from andrea.training.resume import Finder, Start, check_owner, check_target, open_files, open_position
from andrea.training.runfolder import claim
from andrea.training.signals import EXIT_STOPPED, Signals, Stop
from andrea.training.writer import RunFiles, Writer


@dataclass(frozen=True)
class Run:
    """A locked run folder and its checked data. `mark` is the fingerprint's digest."""

    experiment: Experiment
    folder: Path
    data: TrainingData
    mark: str
    made_with: Mapping[str, str]
    history: History
    samples: RecordFile
    events: Events

    @property
    def files(self) -> RunFiles:
        records = {"history": self.history.file, "samples": self.samples}
        return RunFiles(self.folder / "checkpoints", self.folder / f"{self.experiment.name}.state.json", records)


def train(
    experiment_path: Path,
    *,
    root: Path,
    stop_after: int | None = None,
    threads: int = 1,
    checkpoint: Path | None = None,
) -> int:
    """Train an experiment to its `train.steps`, or go on with it. Returns 0 when the model is published.

    Returns 75 when a signal or `stop_after` (a step) ended it early, with a checkpoint, and 76 when the coherence gate
    halted it, with one too. `checkpoint` names the one to go on from instead of the newest. Data, runs and results lie
    under `root`. Raises an AndreaError for what the user can mend: RunError, CheckpointError, DataError, StorageError,
    EngineError, ExperimentError.
    """
    if stop_after is not None and stop_after < 0:
        raise RunError("--stop-after must be a step, 0 or more", got=stop_after, fix="leave it out to train to the end")
    with Signals() as signals, ExitStack() as stack:  # also what is closed at the end is closed in peace
        log = Log()
        stack.callback(log.close)
        try:
            with signals.interruptible():
                run = _prepare(load(experiment_path), root, checkpoint, stack, log)
                clean_temporary(root / "results" / run.experiment.name)
                trainer = _open(run, _find(run, checkpoint, log), threads, signals, stack, log)
            steps = run.experiment.train.steps
            target = steps if stop_after is None else min(steps, stop_after)
            if not trainer.run(target) or trainer.position.step < steps:
                _say_stopped(run, trainer.position.step, log)
                return EXIT_STOPPED
            with signals.interruptible():
                _finish(run, trainer, root / "results" / run.experiment.name, log)
            run.events.end("finished")
        except Halt as halt:
            log.say(f"halted: {halt}")
            write_atomic(run.folder / HALTED, f"{halt}\n".encode())
            run.events.end("halted", reason=str(halt))
            return EXIT_HALTED
        except Stop:
            log.say("stopped; the same command goes on")
            return EXIT_STOPPED
    return 0


def _prepare(experiment: Experiment, root: Path, checkpoint: Path | None, stack: ExitStack, log: Log) -> Run:
    """Check the data, and lock the run folder of this fingerprint."""
    require_memory(experiment)
    data = open_data(experiment, root)
    mark = fingerprint(experiment, data.manifest, data.tokenizer.sha256)
    if checkpoint is not None:
        check_owner(checkpoint, mark.digest)  # before any folder is renamed
    name, folder = experiment.name, root / "runs" / experiment.name
    stack.enter_context(claim(root / "runs", name, mark, log.say))
    log.open(folder / "train.log")
    events = stack.enter_context(Events(folder / EVENTS))
    with storing(folder / HALTED):
        (folder / HALTED).unlink(missing_ok=True)
    rejoin_samples(folder, name)
    history, samples = History(folder / f"{name}.loss.json"), RecordFile(folder / f"{name}.samples.json")
    stack.callback(history.file.close)
    stack.callback(samples.close)
    return Run(experiment, folder, data, mark.digest, made_with(), history, samples, events)


def _find(run: Run, checkpoint: Path | None, log: Log) -> Start:
    """Where the run goes on: at `checkpoint` if one is named, else at the newest usable one."""
    checkpoints, name = run.files.checkpoints, run.experiment.name
    for stray in clean(run.folder, run.mark) + clean(checkpoints, run.mark):
        log.say(f"passed over {stray}: it has no manifest")
    finder = Finder(run.experiment, run.mark, run.history, run.samples)
    start = finder.newest(checkpoints, log.say) if checkpoint is None else finder.at(checkpoint)
    aside = set_aside(run.experiment, run.folder, start.checkpoint.step) if checkpoint is None else None
    if aside:
        log.say(f"the polish section has changed: what lies past step {start.checkpoint.step:,} is kept in {aside}")
    check_target(start.checkpoint.step, run.experiment, steps_in(checkpoints))
    require_free(checkpoints, 2 * size_of(start.checkpoint.weights.size), f"{name}: two checkpoints")
    return start


def _open(run: Run, start: Start, threads: int, signals: Signals, stack: ExitStack, log: Log) -> Trainer:
    """Open the engine, cut the run files back to the start, and put the loop together."""
    e, data = run.experiment, run.data
    batches = Batches(data.train, e.model.context, e.train.batch_size, e.train.seed)
    heldout = {
        source: hold_out(source, tokens, e.model.context, e.validation.blocks, data.tokenizer.token_bytes)
        for source, tokens in data.heldout.items()
    }
    sampler = Sampler(e, data.tokenizer)
    polished = start.state is not None and start.state["polish"] is not None
    firehose = open_firehose(e, batches, polished=polished)
    gate = Gate(e.samples, known_words(data.train, data.tokenizer))
    position = open_position(start, firehose, e)
    engine = _open_engine(e, start, threads)
    run = replace(run, made_with={**run.made_with, **engine.versions()})
    _announce(run, start, engine, batches, log)
    samples = open_files(start, run.history, run.samples, len(e.samples.prompts), run.files.state)
    gate.recall(samples)
    writer = _open_writer(run, start)
    stack.callback(writer.close)
    return Trainer(
        experiment=e,
        engine=engine,
        batches=batches,
        firehose=firehose,
        position=position,
        heldout=heldout,
        sampler=sampler,
        gate=gate,
        history=run.history,
        samples=run.samples,
        sampled=samples[-1]["step"] if samples else 0,
        writer=writer,
        signals=signals,
        log=log,
        events=run.events,
        fingerprint=run.mark,
    )


def _open_engine(experiment: Experiment, start: Start, threads: int) -> Engine:
    """The engine in the state of `start`."""
    engine, begin = open_engine(experiment, threads), start.checkpoint
    if start.state is not None:
        engine.restore(start.state.get("engine", {}))
    engine.load(begin.weights, begin.m, begin.v, begin.step)
    return engine


def _open_writer(run: Run, start: Start) -> Writer:
    """The writer of checkpoints, after what an earlier one should have deleted: a kill may have come before it."""
    e, folder, step = run.experiment, run.files.checkpoints, start.checkpoint.step
    pinned = frozenset({e.polish.at_step} if e.polish else ())
    prune(folder, e.checkpoints, run.history.losses, step, pinned)
    stamp = {"fingerprint": run.mark, "versions": run.made_with}
    in_place = start.path is not None and start.path.parent.resolve() == folder.resolve()
    return Writer(run.files, e.checkpoints, stamp, saved=step if in_place else None, pinned=pinned, events=run.events)


def _announce(run: Run, start: Start, engine: Engine, batches: Batches, log: Log) -> None:
    """What runs, on what, in how much memory, from where; and what has changed since the checkpoint was made."""
    name, plan = run.experiment.name, engine.plan()
    parts = ", ".join(f"{part} {size / 1e6:,.1f}" for part, size in plan.parts)
    origin = f"goes on from {start.path}" if start.path else "new run"
    log.say(f"{name}: {origin}, step {start.checkpoint.step:,} of {run.experiment.train.steps:,}")
    log.say(f"{name}: {engine.describe()}")
    log.say(f"{name}: memory {plan.total / 1e6:,.1f} MB ({parts})")
    log.say(outlook(run.experiment, start.checkpoint.step))
    changed = changes(start.manifest.versions, run.made_with) if start.manifest else ""
    if changed:
        log.say(f"{name}: not what the run was made with, so its bits may differ from here on: {changed}")
    note_versions(run.folder / VERSIONS, start.checkpoint.step, run.made_with)
    e = run.experiment
    run.events.note(
        "start",
        step=start.checkpoint.step,
        steps=e.train.steps,
        pid=os.getpid(),
        engine=engine.describe(),
        memory=dict(plan.parts),
        tokens=e.train.batch_size * e.model.context,
        epochs={source: batches.epochs(source, 1) for source in sorted(e.sources)},
    )


def _say_stopped(run: Run, step: int, log: Log) -> None:
    saved = bin_path(run.files.checkpoints, step)
    log.say(f"stopped at step {step:,}, saved: {saved}, with history, samples and state")
    log.say(f"the same command goes on from there; so does .venv/bin/andrea train {short_name(run.experiment.name)}")


def _finish(run: Run, trainer: Trainer, results: Path, log: Log) -> None:
    log.say(f"{run.experiment.name}: final evaluation on held-out text")
    archive = archive_run(run.experiment, run.folder, trainer.engine, trainer.sampler, trainer.gate)
    step = trainer.position.step
    log.say(f"samples of step {step:,} score {trainer.gate.scores[step]:.0f} of 100 for coherence")
    log.say(evaluate_final(run.experiment, run.data, trainer.engine, archive))
    facts = {"fingerprint": run.mark, "made_with": read_versions(run.folder / VERSIONS)}
    publish(run.experiment, results, run.data, trainer.snapshot(), facts)
    log.say(f"{run.experiment.name}: {results / 'model.bin'} is the model of step {step:,}")
