"""What a run costs beyond its bare steps: python benchmarks/loop_overhead.py 12M --corpus DIR --steps 2000

DIR is what firehose_data.py leaves, or any project folder with one experiment whose data stages have run and which has
the bandit's section: its tokens and its bandit are used, everything else is as ANDREA-<model> ships it. First the bare
step is timed as train_step.py does it, then the whole trainer runs in a folder that is removed afterwards, with each call
of the engine timed by the clock, and then the bare step again: the smaller of the two counts. The loop is counted from
its first step, so without the first checkpoint, to its last, whose checkpoint may still be on its way to the disk.
"""

import argparse
import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rows import append, row

from andrea import proxy
from andrea.batches import Batches
from andrea.engine import Engine, open_engine
from andrea.experiment import SUFFIX, Experiment, load
from andrea.files import read_json, write_json
from andrea.training.data import open_data
from andrea.training.loop import Trainer
from andrea.training.writer import Writer

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
SHIPPED = ("model", "train", "validation", "samples", "checkpoints")
CALLS = ("run", "evaluate", "begin_generate", "snapshot")
DISK = "waiting for the disk"


class Watch:
    """An engine whose CALLS are timed, from the first run() to the loop's end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.began = self.ended = self.last = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.engine, name)
        return self.timed(name, value) if name in CALLS else value

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            self.began = self.began or (began if name == "run" else 0.0)
            result = call(*arguments)
            if self.began and not self.ended:
                self.seconds[name] += time.perf_counter() - began
                self.calls[name] += 1
            return self.timed(name, result) if callable(result) else result

        return timed


def prepared(model: str, corpus: Path, steps: int, engine: str, root: Path) -> Path:
    """The experiment's file in the project folder `root`, which gets the tokens of `corpus`."""
    found = sorted((corpus / "experiments").glob(f"*{SUFFIX}.json"))
    assert len(found) == 1, f"{corpus}/experiments must hold one experiment, not {len(found)}"
    value = read_json(found[0], "the experiment")
    shipped = read_json(EXPERIMENTS / f"ANDREA-{model}{SUFFIX}.json", "the experiment")
    tokens = corpus / "data" / value["name"] / "tokens"
    value |= {section: shipped[section] for section in SHIPPED}
    value["train"] |= {"steps": steps, "engine": engine}
    value["samples"]["halt_after"] = 0  # so young a model babbles
    if engine == "cpu":
        value["train"]["precision"] = "fp32"
    bandit = value["firehose"]["bandit"]
    for table in (value["sources"], value["firehose"]["weights"], bandit["floors"], bandit["caps"]):
        for source in [source for source in table if not (tokens / f"{source}.train.btok").exists()]:
            del table[source]
    (root / "data").symlink_to((corpus / "data").resolve())
    path = root / "experiments" / found[0].name
    write_json(path, value)
    return path


def bare(e: Experiment, root: Path, steps: int) -> list[float]:
    """Percentiles 20, 50, 80 of a step by itself, in milliseconds; on batches of all sources in turn."""
    from train_step import opened, step_times  # they need CuPy

    drawer = Batches(open_data(e, root).train, e.model.context, e.train.batch_size, e.train.seed)
    sources = (sorted(e.sources) * 32)[:32]
    each, _ = step_times(opened(e), np.stack(list(drawer.draw_steps(sources, {}))), steps)
    return [float(ms) for ms in np.percentile(each, (20, 50, 80))]


def trained(path: Path, root: Path) -> tuple[Watch, float]:
    """Train to the end: the engine with the times of its calls in the loop, and the loop's seconds."""
    watches: list[Watch] = []

    class WatchedWriter(Writer):
        def wait(self) -> None:
            watches[0].last = time.perf_counter()
            watches[0].timed(DISK, super().wait)()

    class WatchedTrainer(Trainer):
        def run(self, target: int) -> bool:
            done, watch = super().run(target), watches[0]
            watch.seconds[DISK] -= time.perf_counter() - watch.last  # its last wait is for the last checkpoint
            watch.ended = watch.last
            return done

    def opening(experiment: Experiment, threads: int) -> Any:
        watches.append(Watch(open_engine(experiment, threads)))
        return watches[0]

    replaced = {"open_engine": opening, "Trainer": WatchedTrainer, "Writer": WatchedWriter}
    with mock.patch.multiple(proxy, **replaced):
        assert proxy.train(path, root=root) == 0
    return watches[0], watches[0].ended - watches[0].began


def table(watch: Watch, ms: float, bare_ms: float, steps: int) -> Iterator[str]:
    """Where the `ms` of a step of the loop go, as Markdown; the share is of the bare step."""
    each = {name: 1e3 * watch.seconds[name] / steps for name in (*CALLS, DISK)}
    rows = {"bare step": (bare_ms, steps), "run() beyond bare steps": (each["run"] - bare_ms, watch.calls["run"])}
    rows |= {f"{name}()": (each[name], watch.calls[name]) for name in CALLS[1:]}
    rows |= {DISK: (each[DISK], watch.calls[DISK]), "the rest": (ms - sum(each.values()), 0), "the whole loop": (ms, 0)}
    yield "| part of the loop | calls | ms a step | of the bare step |\n| --- | ---: | ---: | ---: |"
    for name, (part, calls) in rows.items():
        yield f"| {name:<23} | {calls or '':>5} | {part:7.4f} | {100 * part / (bare_ms or ms):6.2f} % |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="12M: an experiment's name without ANDREA-")
    parser.add_argument("--corpus", type=Path, required=True, help="a project folder with tokens")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--engine", choices=("cuda", "cpu"), default="cuda", help="cpu has no bare step")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = prepared(args.model, args.corpus, args.steps, args.engine, Path(folder))
        e = load(path)
        cuda = args.engine == "cuda"
        first = bare(e, Path(folder), 200) if cuda else [0.0] * 3
        gc.collect()
        watch, seconds = trained(path, Path(folder))
        watch.engine, versions = None, watch.versions()  # type: ignore[assignment]
        gc.collect()
        steps = min(first, bare(e, Path(folder), 200), key=lambda cuts: cuts[1]) if cuda else first
    ms = 1e3 * seconds / args.steps
    print("\n".join(table(watch, ms, steps[1], args.steps)))
    if cuda:
        size = f"{args.model} {e.train.batch_size}x{e.shape.context}, {args.steps} steps"
        print(f"{size}: the loop {ms:.3f} ms a step, bare {steps[1]:.3f}, {100 * (ms / steps[1] - 1):.1f} % over it")
    if args.csv and cuda:
        rate = e.train.batch_size * e.shape.context / ms / 1e3
        append(args.csv, [row("training loop", size, e.train.precision, [ms] * 3, f"{rate:.4f}", "Mtok/s", versions)])


if __name__ == "__main__":
    main()
