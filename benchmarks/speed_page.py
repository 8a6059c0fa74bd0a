"""The tables of docs/SPEED.md, made from what `andrea show` prints too: python benchmarks/speed_page.py writes them anew.

Nothing is measured here. The figures of the H200 come from results.csv.
"""

import argparse
import csv
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from andrea.cards import CARDS, H200
from andrea.engine.arena import plan_memory
from andrea.estimate import cuda_seconds, fits, floor_seconds, step_seconds
from andrea.experiment import Experiment, load
from andrea.progress import short_time
from andrea.work import step_work

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "SPEED.md"
SHIPPED = ("ANDREA-12M", "ANDREA-12M-FP32", "ANDREA-120M")
CHECKS = (  # experiment, precision, rows, recompute
    ("ANDREA-12M", "bf16", 8, False),
    ("ANDREA-12M", "tf32", 8, False),
    ("ANDREA-12M", "fp32", 8, False),
    ("ANDREA-120M", "bf16", 8, False),
    ("ANDREA-12M", "fp16", 8, False),
    ("ANDREA-120M", "fp16", 8, False),
    ("ANDREA-12M", "fp8", 8, False),
    ("ANDREA-120M", "fp8", 8, False),
    ("ANDREA-12M", "bf16", 32, False),
    ("ANDREA-120M", "bf16", 32, False),
    ("ANDREA-12M", "bf16", 8, True),
    ("ANDREA-120M", "bf16", 8, True),
)
Row = list[str]


def shipped(name: str, **changes: object) -> Experiment:
    """An experiment of the folder, its train section changed."""
    e = load(ROOT / "experiments" / f"{name}-TRAIN.json")
    return dataclasses.replace(e, train=dataclasses.replace(e.train, **changes))  # type: ignore[arg-type]


def measured(e: Experiment) -> tuple[float, bool] | None:
    """Median ms of a step on the H200, the newest, and whether of the engine as it is or of an earlier variant."""
    t = e.train
    again = ", recompute" if t.recompute else ""
    size = f", {t.batch_size}x{e.model.context}, {t.microbatches} microbatches{again}"
    with (ROOT / "benchmarks" / "results.csv").open(newline="") as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if r["dtype"] == t.precision and r["shape"].startswith(e.name + " ") and r["shape"].endswith(size)
        ]
    for now in (True, False):
        found = [r for r in rows if (r["what"] == "train step") is now and r["what"].startswith("train step")]
        if found:
            return float(found[-1]["ms_p50"]), now
    return None


def cards() -> Iterator[Row]:
    yield ["card", "16 bits, TFLOP/s", "tf32", "fp32", "GB/s", "memory, GiB"]
    for c in CARDS:
        yield [c.name, f"{c.half:,.1f}", f"{c.tf32:,.1f}", f"{c.fp32:,.1f}", f"{c.bandwidth:,.0f}", f"{c.memory:.0f}"]


def work() -> Iterator[Row]:
    yield ["one step of 8 x 1024", "launches", "10^12 operations", "GB"]
    for name in SHIPPED:
        for recompute in (False, True):
            e = shipped(name, recompute=recompute)
            w = step_work(e.shape, e.train)
            label = f"{name}, {e.train.precision}{', recompute' if recompute else ''}"
            launches, flops = sum(x.times for x in w), sum(x.times * x.flops for x in w)
            yield [label, f"{launches}", f"{flops / 1e12:.2f}", f"{sum(x.times * x.nbytes for x in w) / 1e9:.1f}"]


def check() -> Iterator[Row]:
    yield ["on the H200", "floor, ms", "expected, ms", "measured, ms", "expected / measured"]
    for name, precision, rows, recompute in CHECKS:
        e = shipped(name, precision=precision, batch_size=rows, recompute=recompute)
        floor, expected = (1e3 * f(e.shape, e.train, H200) for f in (floor_seconds, step_seconds))
        known = measured(e)
        told = f"{known[0]:.2f}{'' if known[1] else ' (earlier)'}" if known else "not yet"
        ratio = f"{expected / known[0]:.2f}" if known else ""
        label = f"{name}, {rows} x 1024, {precision}{', recompute' if recompute else ''}"
        yield [label, f"{floor:.2f}", f"{expected:.2f}", told, ratio]


def runs() -> Iterator[Row]:
    yield ["experiment", "card", "floor, ms", "expected, ms", "steps/s", "tokens/s", "the whole run"]
    for name in SHIPPED:
        e = shipped(name)
        for card in CARDS:
            floor, step = (f(e.shape, e.train, card) for f in (floor_seconds, step_seconds))
            tokens = e.train.batch_size * e.model.context / step
            rate = f"{tokens / 1e6:.2f} M" if tokens >= 1e6 else f"{tokens / 1e3:.0f} k"
            label = f"{name}, {e.train.precision}, {e.train.steps:,} steps"
            run = short_time(cuda_seconds(e, card))
            yield [label, card.name, f"{1e3 * floor:.1f}", f"{1e3 * step:.1f}", f"{1 / step:.3g}", rate, run]


def memory() -> Iterator[Row]:
    again, parts = {"recompute": True}, {"microbatches": 2}
    changes = {"as shipped": {}, "recompute": again, "2 microbatches": parts, "both": again | parts}
    yield ["plan of 8 x 1024, GiB", *changes]
    for name in SHIPPED:
        sizes = [plan_memory(shipped(name, **change)).total / 2**30 for change in changes.values()]
        yield [f"{name}, {shipped(name).train.precision}", *(f"{size:.2f}" for size in sizes)]


def batches() -> Iterator[Row]:
    yield ["most rows of 1024 at once", *(f"{size} GB card" for size in (8, 12, 24))]
    for name in SHIPPED:
        for recompute in (False, True):
            label = f"{name}, {shipped(name).train.precision}{', recompute' if recompute else ''}"
            yield [label, *(str(_most_rows(name, recompute, size)) for size in (8, 12, 24))]


def _most_rows(name: str, recompute: bool, size: int) -> int:
    """The largest power of two."""
    rows, card = 1, dataclasses.replace(H200, memory=size)
    while fits(plan_memory(shipped(name, batch_size=2 * rows, recompute=recompute)).total, card):
        rows *= 2
    return rows


TABLES: dict[str, Callable[[], Iterator[Row]]] = {f.__name__: f for f in (cards, work, check, runs, memory, batches)}


def table(name: str) -> str:
    """Markdown; numbers to the right."""
    head, *rows = TABLES[name]()
    left = [any(not re.match(r"[\d.]", row[i]) for row in rows if row[i]) for i in range(len(head))]
    lines = [head, ["---" if is_text else "--:" for is_text in left], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(page: str) -> str:
    """The page with every table made anew; one stands between `<!-- table: NAME -->` and `<!-- end -->`."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(filled(PAGE.read_text()))
