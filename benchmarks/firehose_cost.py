"""What a window costs: planning, crediting and the first batch of it, at 16 sources of the size of ANDREA-12M's.

python benchmarks/firehose_cost.py prints microseconds a window, and their part of the window's steps at 3 ms each.
The token files are made up and lie in memory, as the page cache holds those of a real run. Processor time of the one
thread is measured, so that other work on the machine counts less. The batches of a whole window, in brackets, are a
cost of its steps; crediting goes over the blocks that they have read.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bandit_kit import recipe  # noqa: E402

from andrea.bandit import Bandit  # noqa: E402
from andrea.batches import Batches  # noqa: E402
from andrea.btok import Btok  # noqa: E402

SOURCES, TOKENS, DOCUMENT, CONTEXT, ROWS, STEP_MS, WINDOWS = 16, 20_000_000, 250, 1024, 8, 3.0, 600


def corpus() -> Batches:
    """Sixteen sources from 20 million tokens down to a few thousand, in documents of about DOCUMENT tokens."""
    draws = np.random.default_rng(1)
    files = {}
    for i in range(SOURCES):
        size = max(3 * CONTEXT, TOKENS // 2**i)
        ends = np.cumsum(draws.integers(20, 2 * DOCUMENT, 2 * size // DOCUMENT + 2))
        offsets = np.concatenate([[0], ends[ends < size], [size]]).astype(np.int64)
        files[f"source-{i:02}"] = Btok(draws.integers(0, 2305, size).astype(np.uint16), offsets, 2305, "0" * 64)
    return Batches(files, CONTEXT, ROWS, 1)


def timed(values: list[float], work: Callable[[], Any]) -> Any:
    """Do `work`, noting the processor time of this thread in microseconds."""
    began = time.thread_time()
    result = work()
    values.append(1e6 * (time.thread_time() - began))
    return result


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    batches = corpus()
    bandit = Bandit(recipe(batches.document_counts(), focus_sources=(1, 4), longest_rest=40), 1, batches)
    noise, start = np.random.default_rng(2), 0
    parts: dict[str, list[float]] = {"plan": [], "first batch": [], "credit": []}
    whole: list[float] = []
    for number in range(WINDOWS):
        window = timed(parts["plan"], lambda n=number, s=start: bandit.plan(n, s))
        pulls = {name: arm.pulls for name, arm in bandit.arms.items()}
        timed(parts["first batch"], lambda w=window, p=pulls: list(batches.draw_steps(w.sources[:1], p)))
        timed(whole, lambda w=window, p=pulls: list(batches.draw_steps(w.sources, p)))
        losses = (3 + 0.1 * noise.standard_normal(len(window.sources))).tolist()
        timed(parts["credit"], lambda w=window, x=losses: bandit.credit(w, x))
        start += len(window.sources)
    rows = {**parts, "all three": [sum(each) for each in zip(*parts.values(), strict=True)], "(all batches)": whole}
    for name, values in rows.items():
        p20, p50, p80 = np.percentile(values, [20, 50, 80])
        print(f"{name:13} {p20:6.0f} {p50:6.0f} {p80:6.0f} us (p20 p50 p80)")
    steps = 1e3 * STEP_MS * start / WINDOWS
    p20, p50, p80 = np.percentile(rows["all three"], [20, 50, 80]) / steps
    print(f"share of {start / WINDOWS:.1f} steps of {STEP_MS} ms: {p20:.2%} {p50:.2%} {p80:.2%}")


if __name__ == "__main__":
    main()
