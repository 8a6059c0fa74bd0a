"""Time of whole training steps on one card, and of each op: python benchmarks/train_step.py 12M 120M --precision bf16

A step is the engine's own graph with its batch copy, timed by events between replays; the median and the 20th and 80th
percentile of at least 50 steps are printed and, with --csv, appended to a table. Ids are Zipf-like, as text is: equal
tokens meet in the embedding's backward. --ops times every op alone, its forward and its backward.
"""

import argparse
import dataclasses
import datetime
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import cupy
import numpy as np
from numpy.typing import NDArray
from results import COLUMNS, append

from andrea.engine.cuda.engine import CudaEngine
from andrea.engine.cuda.matrix import Call
from andrea.engine.cuda.model import Model
from andrea.engine.layout import count, initial_weights
from andrea.experiment import Experiment, load

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


def batches(experiment: Experiment, steps: int) -> NDArray[np.int32]:
    """(steps, B, T + 1) ids with the frequencies of words."""
    shape, rng = experiment.shape, np.random.default_rng(1)
    p = 1 / (np.arange(shape.vocab_size) + 2.7)
    size = (steps, experiment.train.batch_size, shape.context + 1)
    return rng.choice(shape.vocab_size, size, p=p / p.sum()).astype(np.int32)


def opened(experiment: Experiment) -> CudaEngine:
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


def op_table(engine: CudaEngine, experiment: Experiment) -> Iterator[tuple[str, float, float, float]]:
    """(op, forward us, backward us, weight gradients us); a layer's ops are those of layer 1."""
    device = engine._device
    matrix = engine._matrix(side=False)
    shape, t = experiment.shape, experiment.train
    model = Model(device, shape, t.precision, engine._rows, matrix, engine._buffers, engine._scales, t.recompute)
    batch = engine._feed.batch(0)

    def micros(calls: list[Call]) -> float:
        if not calls:
            return 0.0
        graph = device.record(lambda: [call() for _ in range(20) for call in calls])
        graph.launch(device.stream)
        return min(device.seconds(lambda: graph.launch(device.stream), 3) for _ in range(3)) / 20 * 1e6

    embed = model._embed(batch)
    yield embed.name, micros(embed.forward), micros(embed.backward), 0.0
    for op in model.blocks:
        if op.name.startswith(("1.", "LN_f", "head")):
            yield op.name, micros(op.forward), micros(op.backward), micros(op.weights)
    yield "loss", micros(model.losses(batch)), micros(model._loss(batch, 1.0)), 0.0
    device.write(engine._buffers["control"], engine._control)
    update = engine._update_calls(1.0)
    yield "norm", micros(update[:1]), 0.0, 0.0
    engine._control[3] = 1
    device.write(engine._buffers["control"], engine._control)
    yield "adamw", micros(update[2:]), 0.0, 0.0
    yield "zero", micros(engine._step_calls(model)[:1]), 0.0, 0.0


def measure(experiment: Experiment, steps: int, ops: bool) -> dict[str, object]:
    """Print and return one row."""
    device_free = cupy.cuda.runtime.memGetInfo()[0]
    start = time.perf_counter()
    engine = opened(experiment)
    ready = time.perf_counter() - start
    used = device_free - engine._device.free_bytes
    each, wall = step_times(engine, batches(experiment, 32), steps)
    t, shape = experiment.train, experiment.shape
    again = ", recompute" if t.recompute else ""
    p20, p50, p80 = np.percentile(each, (20, 50, 80))
    rate = t.batch_size * shape.context / p50 / 1e3
    print(
        f"{experiment.name} {t.batch_size}x{shape.context} {t.precision}{again}: {p50:.3f} ms (p20 {p20:.3f}, p80 {p80:.3f}), "
        f"{rate:.3f} Mtok/s, run() {wall:.3f} ms a step, plan {engine.plan().total / 2**30:.3f} GiB, "
        f"the card gave {used / 2**30:.3f} GiB, ready in {ready:.1f} s",
        flush=True,
    )
    if ops:
        for name, forward, backward, weights in op_table(engine, experiment):
            print(
                f"    {name:<12} forward {forward:8.1f} us   backward {backward:8.1f} us   weights {weights:8.1f} us",
                flush=True,
            )
    text = ", ".join(f"{k} {v}" for k, v in engine.versions().items() if k != "gpu")
    where = (engine.versions()["gpu"], text, datetime.date.today().isoformat())
    batch = f"{t.batch_size}x{shape.context}, {t.microbatches} microbatches{again}"
    sizes = f"{experiment.name} {count(shape)} parameters, {batch}"
    row = ("train step", sizes, t.precision, f"{p20:.4f}", f"{p50:.4f}", f"{p80:.4f}", f"{rate:.4f}", "Mtok/s", *where)
    return dict(zip(COLUMNS, row, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="12M, 120M: an experiment's name without ANDREA-")
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    parser.add_argument("--batch", type=int, help="rows, instead of the experiment's")
    parser.add_argument("--recompute", action="store_true", help="with train.recompute")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = []
    for model in args.models:
        for precision in args.precision:
            e = load(EXPERIMENTS / f"ANDREA-{model}-TRAIN.json")
            changes = {
                "precision": precision,
                "batch_size": args.batch or e.train.batch_size,
                "recompute": args.recompute,
            }
            e = dataclasses.replace(e, train=dataclasses.replace(e.train, **changes))
            rows.append(measure(e, args.steps, args.ops))
    if args.csv:
        append(args.csv, rows)


if __name__ == "__main__":
    main()
