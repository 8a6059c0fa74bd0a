"""Every kernel of a training step alone on one card, and where a step goes: python benchmarks/kernel_times.py 12M 120M --torch

An op is launched at least 20 times in one graph; the graph is replayed, and the percentiles are of its replays. The layers
take turns, so an op that every layer has finds its operands as cold as the other layers leave them; ops that a step
has once (embed, head, loss, optimizer) find in the cache what fits there. Ceilings and counts are those of counts.py.
With --torch its kernels for the same work stand beside ours (torch_ops.py). Printed as Markdown; --csv adds to a table.
"""

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytorch
from counts import Work, work
from rows import append, row
from timing import microseconds
from train_step import PRECISIONS, batches, opened, step_times, torch_settings, variant

from andrea.engine.cuda.blocks import BLOCK
from andrea.engine.cuda.engine import ELEMENTS, CudaEngine
from andrea.engine.cuda.matrix import Call
from andrea.engine.cuda.mlp_fused import is_fused
from andrea.engine.cuda.model import Model, Op
from andrea.engine.layout import count
from andrea.experiment import Experiment

Calls = list[list[Call]]  # of one op, for each layer that has it
Times = tuple[float, float, float]  # microseconds of one op: percentiles 20, 50, 80
GROUPS = ("embed", "layernorm", "attention", "gelu", "loss", "grad norm", "adamw", "zero")
PRODUCTS = ("forward", "input gradient", "weight gradient")
HEAD = "| {:<26} | {:>6} | {:>8} | {:>8} | {:>8} | {:>7} | {:<7} | {:>7} | {:>8} | {:>5} |"


def launches(engine: CudaEngine, experiment: Experiment) -> dict[str, Calls]:
    """Every op by its name in counts.work; all on the main stream, weight gradients too."""
    device, buffers, feed = engine._device, engine._buffers, engine._feed
    shape, precision, matrix = experiment.shape, experiment.train.precision, engine._matrix(side=False)
    model = Model(device, shape, precision, engine._rows, matrix, buffers, engine._scales, recompute=False)
    embed, update = model._embed(feed.batch(0)), engine._update_calls(1.0)
    engine._control[3] = 1  # apply: AdamW does its work
    device.write(buffers["control"], engine._control)
    table: dict[str, Calls] = defaultdict(list)
    for op in model.blocks:
        for name, calls in named(op):
            table[name].append(calls)
    table |= {"embed forward": [embed.forward], "embed backward": [embed.backward]}
    table |= {"loss": [model._loss(feed.batch(0), 1.0)], "layernorm parameters": [model._norm_params()]}
    # the norm's second launch is left out: it moves on to the next place in the window's losses
    n, gradients, clear = count(shape), buffers["gradients"], engine._kernel("k_zero_grads")
    zero = [lambda: clear((-(-n // ELEMENTS),), BLOCK, gradients.part(0, n), n)]  # a step has it on the side stream
    table |= {"grad norm": [update[:1]], "adamw": [update[2:]], "zero": [zero]}
    flat = [buffers[name].reshape(buffers[name].size) for name in ("x.1", "x.0", "dbranch")]
    residual, size, pack = model._kernel("residual", "k_residual_add"), flat[0].size, 16 // flat[0].itemsize
    table["residual forward"] = [[lambda: residual((-(-size // (BLOCK * pack)),), BLOCK, *flat, size)]]
    return dict(table)


def named(op: Op) -> Iterator[tuple[str, list[Call]]]:
    """The parts of one op of one layer, by name; "mlp" is GELU with the product before it."""
    layer = op.name.split(".")[-1]
    kind = "layernorm" if layer.startswith("LN") else layer
    for name, calls in (("forward", op.forward), ("backward" if kind in GROUPS else "input gradient", op.backward)):
        if calls:
            yield f"{kind} {name}", calls
    if kind == "attention":
        yield "attention backward, dq", op.backward[:1]
        yield "attention backward, dk dv", op.backward[1:]
    if op.weights:
        names = ("down", "up") if kind == "up" else (kind,)  # W_2's gradient is made together with W_1's
        for name, call in zip(names, op.weights, strict=True):
            yield f"{name} weight gradient", [call]


def table_lines(
    counted: Mapping[str, Work], times: Mapping[str, Times], precision: str, theirs: Mapping[str, Times]
) -> Iterator[str]:
    """The table of ops as Markdown."""
    yield HEAD.format("op", "a step", "us", "GFLOP", "MB", "rate", "unit", "ceiling", "torch us", "ratio")
    yield HEAD.format("---", *["---:"] * 5, "---", *["---:"] * 3)
    for name, what in counted.items():
        us = times[name][1]
        rate, unit = what.rate(us / 1e6)
        share, other = what.floor(precision) * 1e8 / us, theirs.get(name)
        beside = (f"{other[1]:.1f}", f"{other[1] / us:.2f}") if other else ("", "")
        sizes = (f"{what.flop / 1e9:.2f}", f"{what.nbytes / 1e6:.1f}")
        yield HEAD.format(name, what.times, f"{us:.1f}", *sizes, f"{rate:.0f}", unit, f"{share:.0f} %", *beside)


def shares(counted: Mapping[str, Work], times: Mapping[str, Times]) -> dict[str, float]:
    """Milliseconds of a step by group of ops."""
    groups: dict[str, float] = dict.fromkeys((*(f"products, {kind}" for kind in PRODUCTS), *GROUPS), 0.0)
    for name, what in counted.items():
        own = next((group for group in GROUPS if name.startswith(group)), None)
        kind = next((kind for kind in PRODUCTS if name.endswith(kind)), "")
        groups[own or f"products, {kind}"] += what.times * times[name][1] / 1e3
    return groups


def step_lines(groups: Mapping[str, float], step: float) -> Iterator[str]:
    """Where a step of `step` milliseconds goes, as Markdown."""
    total = sum(groups.values())
    rows = {**groups, "sum of its kernels": total, "a step as measured": step, "gaps, or less by overlap": step - total}
    yield "| part of a step | ms | of the step |\n| --- | ---: | ---: |"
    for name, ms in rows.items():
        if ms:  # GELU may be part of a product
            yield f"| {name:<26} | {ms:7.3f} | {100 * ms / step:5.1f} % |"


def report(experiment: Experiment, steps: int, python: str | None) -> list[dict[str, object]]:
    """Print both tables of one experiment and return the rows for the table of results."""
    t, shape = experiment.train, experiment.shape
    settings = torch_settings(experiment)
    theirs = pytorch.measure(python, "torch_ops.py", settings) if python else {"us": {}, "versions": {}}
    engine = opened(experiment)
    step = float(np.median(step_times(engine, batches(experiment, 32), steps)[0]))
    fused = is_fused(engine._device.arch, t.precision, shape.d_model)
    counted = work(shape, engine._rows, t.precision, fused=fused)
    times = {name: microseconds(engine._device, calls) for name, calls in launches(engine, experiment).items()}
    size, versions = f"{experiment.name}, {t.batch_size}x{shape.context}", engine.versions()
    print(f"\n## {size}, {t.precision}, {versions['gpu']}\n")
    print("\n".join([*table_lines(counted, times, t.precision, theirs["us"]), ""]))
    print("\n".join(step_lines(shares(counted, times), step)), flush=True)
    rows = []
    for name, what in counted.items():
        for side, found, about in (("", times, versions), (", torch", theirs["us"], theirs["versions"])):
            if name in found:
                us = found[name]
                rate, unit = what.rate(us[1] / 1e6)
                ms = [u / 1e3 for u in us]
                rows.append(row(f"kernel {name}{side}", size, t.precision, ms, f"{rate:.0f}", unit, about))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="12M, 120M: an experiment's name without ANDREA-")
    choices = [name for name in PRECISIONS if name != "fp8"]  # whose casts counts.py does not know
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=choices)
    parser.add_argument("--batch", nargs="+", type=int, default=[8])
    parser.add_argument("--steps", type=int, default=100, help="of the whole step that the sum is compared with")
    parser.add_argument("--csv", type=Path)
    pytorch.add_option(parser)
    args = parser.parse_args()
    for model, precision, batch in itertools.product(args.models, args.precision, args.batch):
        rows = report(variant(model, precision, batch), args.steps, args.torch)
        if args.csv:
            append(args.csv, rows)


if __name__ == "__main__":
    main()
