"""What the bandit does with losses that we make up: python benchmarks/firehose_simulations.py (about half a minute).

Three questions, each with its plot in docs/ and its figures on standard output:
(a) what share does an arm of pure noise earn, under our reward and under the original's?
(b) does an arm that can be learned rise, and fall again when it has been learned?
(c) how often is a source of 1,400 documents read in a run of 43,587 steps, with the penalty and without?
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from bandit_kit import FALL, Losses, Packed, drive, recipe  # noqa: E402
from svg import chart  # noqa: E402

from andrea.bandit import Bandit  # noqa: E402
from andrea.recipe import FirehoseSpec  # noqa: E402
from andrea.window import Window  # noqa: E402

DOCS = ROOT / "docs"
SEEDS = (1, 2, 3, 4, 5)


def share_of(name: str, windows: Sequence[Window], bins: int) -> list[float]:
    """Share of the steps that drew from `name`, in `bins` equal parts of the run."""
    drawn = np.array([source == name for window in windows for source in window.sources], float)
    return [float(part.mean()) for part in np.array_split(drawn, bins)]


def mean_share(
    name: str, spec: FirehoseSpec, counts: dict[str, int], losses: Losses, windows: int, bins: int
) -> tuple[list[float], list[float]]:
    """Share over time, mean over seeds; and the share of the whole run for each seed."""
    runs = [share_of(name, drive(Bandit(spec, seed, Packed(counts)), windows, losses), bins) for seed in SEEDS]
    return np.mean(runs, axis=0).tolist(), np.mean(runs, axis=1).tolist()


def noise_arm() -> None:
    counts = dict.fromkeys(("noise", "flat-1", "flat-2", "flat-3"), 10**6)

    def losses(name: str, _: int, noise: np.random.Generator) -> float:
        return 3.0 + (0.5 if name == "noise" else 0.01) * float(noise.standard_normal())

    bins, windows = 30, 400
    rows = {
        "learning, noise": ("noise", recipe(counts)),
        "learning, flat": ("flat-1", recipe(counts)),
        "fall, noise": ("noise", recipe(counts, reward=FALL, exploration=100.0)),
        "fall, flat": ("flat-1", recipe(counts, reward=FALL, exploration=100.0)),
    }
    lines = {}
    for label, (name, spec) in rows.items():
        lines[label], each = mean_share(name, spec, counts, losses, windows, bins)
        print(f"(a) {label:16} share {np.mean(each):.3f}  (seeds: {' '.join(f'{x:.3f}' for x in each)})")
    x = np.linspace(0, windows * 24.5, bins).tolist()
    title = "(a) Shares of a noise arm (0.5 nats) and of a flat arm"
    chart(DOCS / "firehose-noise.svg", title, "step", "share of steps", x, lines)


def learnable_arm() -> None:
    counts = dict.fromkeys(("fresh", "known-1", "known-2", "known-3"), 10**6)

    def losses(name: str, pulls: int, noise: np.random.Generator) -> float:
        fall = 2 * math.exp(-pulls / 800) if name == "fresh" else 0.0
        return 3.0 + 0.1 * float(noise.standard_normal()) + fall

    bins, windows = 40, 700
    fresh, _ = mean_share("fresh", recipe(counts), counts, losses, windows, bins)
    known, _ = mean_share("known-1", recipe(counts), counts, losses, windows, bins)
    print(f"(b) fresh: greatest share {max(fresh):.2f}, last tenth {np.mean(fresh[-4:]):.2f}; even is 0.25")
    x = np.linspace(0, windows * 24.5, bins).tolist()
    title = "(b) An arm that can be learned: 3 + 2 exp(-pulls/800) nats, noise 0.1"
    chart(DOCS / "firehose-learned.svg", title, "step", "share of steps", x, {"fresh": fresh, "known": known})


def tiny_arm() -> None:
    counts = {**{f"s{i:02}": 100_000 for i in range(15)}, "tiny": 1400}

    def losses(name: str, pulls: int, noise: np.random.Generator) -> float:
        return 3.0 + 0.1 * float(noise.standard_normal()) - (pulls / 2000 if name == "tiny" else 0)

    class NoPenalty(Packed):
        def epochs(self, source: str, pulls: int) -> float:  # noqa: ARG002
            return 0.0

    bins, lines = 60, {}
    for label, kind in (("with penalty", Packed), ("without penalty", NoPenalty)):
        corpus = kind(counts)
        done = drive(Bandit(recipe(counts, focus_sources=(1, 4)), 1, corpus), 1780, losses)
        drawn = np.cumsum([source == "tiny" for window in done for source in window.sources])
        epochs = drawn * 8 / counts["tiny"]
        lines[label] = epochs[np.linspace(0, len(epochs) - 1, bins).astype(int)].tolist()
        print(f"(c) {label:16} {len(epochs):,} steps, epochs of the tiny source {epochs[-1]:.1f}")
    even = len(epochs) / 16 * 8 / counts["tiny"]
    lines["drawn evenly"] = np.linspace(0, even, bins).tolist()
    x = np.linspace(0, len(epochs), bins).tolist()
    title = "(c) Epochs of 1,400 documents that are being memorised, among 16 sources"
    chart(DOCS / "firehose-tiny.svg", title, "step", "epochs", x, lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    noise_arm()
    learnable_arm()
    tiny_arm()
