"""Time of whole training steps on one card: python benchmarks/train_step.py 12M 120M --precision bf16 --torch

A step is the engine's own graph with its batch copy, timed by events between replays; the median and the 20th and 80th
percentile of at least 50 steps are printed and, with --csv, appended to a table. Ids are Zipf-like, as text is: equal
tokens meet in the embedding's backward. With --torch PyTorch's fastest step (torch_step.py) is measured before and after
ours, and its better time counts. kernel_times.py says where a step's time goes.
"""

import argparse
import dataclasses
import gc
import itertools
import time
from pathlib import Path

import numpy as np
import pytorch
from numpy.typing import NDArray
from rows import append, row

from andrea.engine.cuda.engine import CudaEngine
from andrea.engine.cuda.nvrtc import INSTALL
from andrea.engine.layout import count, initial_weights
from andrea.experiment import Experiment, load

try:
    import cupy
except ImportError as cause:
    raise SystemExit(f"error: this needs CuPy and an NVIDIA GPU ({cause})\n  fix: {INSTALL}") from cause

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
PRECISIONS = ("bf16", "fp16", "tf32", "fp32", "fp8")
Row = dict[str, object]


def variant(model: str, precision: str, batch: int | None, *, recompute: bool = False) -> Experiment:
    """The experiment ANDREA-`model` in another precision and, if asked for, with another batch."""
    e = load(EXPERIMENTS / f"ANDREA-{model}-TRAIN.json")
    changes = {"precision": precision, "batch_size": batch or e.train.batch_size, "recompute": recompute}
    return dataclasses.replace(e, train=dataclasses.replace(e.train, **changes))


def batches(experiment: Experiment, steps: int) -> NDArray[np.int32]:
    """(steps, B, T + 1) ids with the frequencies of words."""
    shape, rng = experiment.shape, np.random.default_rng(1)
    p = 1 / (np.arange(shape.vocab_size) + 2.7)
    size = (steps, experiment.train.batch_size, shape.context + 1)
    return rng.choice(shape.vocab_size, size, p=p / p.sum()).astype(np.int32)


def opened(experiment: Experiment) -> CudaEngine:
    gc.collect()  # a last engine's memory: its graphs refer to each other
    engine = CudaEngine(experiment.shape, experiment.train)
    weights = initial_weights(experiment.shape, experiment.model.init, 1)
    engine.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    return engine


def step_times(engine: CudaEngine, data: NDArray[np.int32], steps: int) -> tuple[list[float], float]:
    """Milliseconds of each step by events, and of a step by the clock, windows of run() included."""
    engine.run(data, np.full(len(data), 1e-4))
    engine._control[5] = 0
    engine._device.write(engine._buffers["control"], engine._control)
    stream, marks = engine._device.stream, [cupy.cuda.Event() for _ in range(steps + 1)]
    marks[0].record(stream)
    for s in range(steps):
        engine._feed.send(s % len(data), data[s % len(data)], 1e-4, s + 1)
        engine._step_graph.launch(stream)
        if s % 32 == 31:  # the ring must not be overrun, nor the losses' buffer
            engine._control[5] = 0
            engine._device.write(engine._buffers["control"], engine._control)
        marks[s + 1].record(stream)
    engine._device.wait()
    each = [cupy.cuda.get_elapsed_time(a, b) for a, b in itertools.pairwise(marks)]
    start = time.perf_counter()
    engine.run(data, np.full(len(data), 1e-4))
    return each, 1e3 * (time.perf_counter() - start) / len(data)


def ours(experiment: Experiment, steps: int) -> tuple[Row, float]:
    """Print and return one row, and its median in milliseconds."""
    gc.collect()
    free, start = cupy.cuda.runtime.memGetInfo()[0], time.perf_counter()
    engine = opened(experiment)
    ready, used = time.perf_counter() - start, free - engine._device.free_bytes
    each, wall = step_times(engine, batches(experiment, 32), steps)
    t, shape = experiment.train, experiment.shape
    cuts = [float(c) for c in np.percentile(each, (20, 50, 80))]
    rate, again = t.batch_size * shape.context / cuts[1] / 1e3, ", recompute" if t.recompute else ""
    print(
        f"{experiment.name} {t.batch_size}x{shape.context} {t.precision}{again}: {cuts[1]:.3f} ms (p20 {cuts[0]:.3f}, "
        f"p80 {cuts[2]:.3f}), {rate:.3f} Mtok/s, run() {wall:.3f} ms a step, plan {engine.plan().total / 2**30:.3f} GiB, "
        f"the card gave {used / 2**30:.3f} GiB, ready in {ready:.1f} s",
        flush=True,
    )
    micro = f"{t.microbatches} microbatches{again}"
    sizes = f"{experiment.name} {count(shape)} parameters, {t.batch_size}x{shape.context}, {micro}"
    return row("train step", sizes, t.precision, cuts, f"{rate:.4f}", "Mtok/s", engine.versions()), cuts[1]


def torch_settings(experiment: Experiment) -> dict[str, object]:
    """The same model and batch as options of torch_step.py and torch_ops.py."""
    s, t = experiment.shape, experiment.train
    sizes = {"layers": s.n_layers, "width": s.d_model, "heads": s.n_heads, "vocabulary": s.vocab_size}
    precision = "bf16" if t.precision == "fp8" else t.precision  # its fastest set-up knows no fp8
    return {**sizes, "context": s.context, "batch": t.batch_size, "precision": precision}


def compare(experiment: Experiment, steps: int, python: str) -> list[Row]:
    """PyTorch, ours, PyTorch; the ratio is printed, both rows are returned."""
    settings = {**torch_settings(experiment), "steps": steps}
    first = pytorch.measure(python, "torch_step.py", settings)
    mine, ms = ours(experiment, steps)
    runs = [first, pytorch.measure(python, "torch_step.py", settings)]
    best = min(runs, key=lambda run: run["ms"][1])
    theirs, both = best["ms"][1], " and ".join(f"{run['ms'][1]:.3f}" for run in runs)
    print(
        f"    ours {ms:.3f} ms, torch {theirs:.3f} ms ({both}; {best['gib']:.2f} GiB), ratio {theirs / ms:.2f}",
        flush=True,
    )
    t = experiment.train
    rate, sizes = (
        t.batch_size * experiment.shape.context / theirs / 1e3,
        f"{experiment.name}, {t.batch_size}x{experiment.shape.context}",
    )
    what = "train step, torch, compiled, whole-step graph (not deterministic)"
    return [mine, row(what, sizes, str(settings["precision"]), best["ms"], f"{rate:.4f}", "Mtok/s", best["versions"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="12M, 120M: an experiment's name without ANDREA-")
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=PRECISIONS)
    parser.add_argument("--batch", nargs="+", type=int, default=[None], help="rows, instead of the experiment's")
    parser.add_argument("--recompute", action="store_true", help="with train.recompute")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    pytorch.add_option(parser)
    args = parser.parse_args()
    for model, precision, batch in itertools.product(args.models, args.precision, args.batch):
        e = variant(model, precision, batch, recompute=args.recompute)
        rows = compare(e, args.steps, args.torch) if args.torch else [ours(e, args.steps)[0]]
        if args.csv:
            append(args.csv, rows)


if __name__ == "__main__":
    main()
