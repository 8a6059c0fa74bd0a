"""A made-up corpus, settings and losses, for tests and simulations of the bandit."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.bandit import Bandit
from andrea.recipe import BanditSpec, FirehoseSpec, RewardSpec
from andrea.window import Window

ROWS = 8
LEARNING = RewardSpec("learning", alpha=0.1, slow_alpha=0.01, threshold=2.5, scale=2e4, burn_in=10, forget=0.05)
FALL = RewardSpec("fall", alpha=0.1, slow_alpha=0.01, threshold=0.0, scale=1000.0, burn_in=1, forget=0.0)


class Packed:
    """A corpus in which every row is one document, read in order, again and again."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def document_counts(self) -> Mapping[str, int]:
        return self.counts

    def epochs(self, source: str, pulls: int) -> float:
        return pulls * ROWS / self.counts[source]

    def touched(self, sources: Sequence[str], pulls: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        read = {name: self._rows(name, pulls[name], sources.count(name)) for name in set(sources)}
        places = [np.full(len(rows), sorted(self.counts).index(name)) for name, rows in read.items()]
        return np.concatenate(places), np.concatenate(list(read.values()))

    def _rows(self, source: str, before: int, pulls: int) -> NDArray[np.int64]:
        return np.arange(before * ROWS, (before + pulls) * ROWS) % self.counts[source]


def recipe(counts: Mapping[str, int], **changes: Any) -> FirehoseSpec:
    """Settings over the sources of `counts`; `changes` replace fields of the bandit's section."""
    bandit = BanditSpec(
        reward=LEARNING,
        exploration=1.0,
        cold_start=10,
        focus_sources=(1, 2),
        focus_epochs=4.0,
        background=0.1,
        longest_rest=20,
        coverage_bonus=0.3,
        coverage_until=0.5,
        floors=dict.fromkeys(counts, 0.0),
        caps=dict.fromkeys(counts, 1.3),
        curriculum_warmup_steps=0,
        curriculum_warmup_sources=(),
    )
    return FirehoseSpec("bandit", dict.fromkeys(counts, 1.0), (7, 42), dataclasses.replace(bandit, **changes))


Losses = Callable[[str, int, np.random.Generator], float]  # (source, pulls before, noise) -> nats


def noisy(_: str, __: int, noise: np.random.Generator) -> float:
    return 3.0 + 0.3 * float(noise.standard_normal())


def drive(bandit: Bandit, windows: int, losses: Losses = noisy, first: int = 0, start: int = 0) -> list[Window]:
    """Plan and credit `windows` windows; the losses depend on the step alone."""
    done = []
    for number in range(first, first + windows):
        window = bandit.plan(number, start)
        seen = {name: arm.pulls for name, arm in bandit.arms.items()}
        heard = []
        for step, name in enumerate(window.sources, start + 1):
            heard.append(losses(name, seen[name], np.random.default_rng(step)))
            seen[name] += 1
        bandit.credit(window, heard)
        start += len(window.sources)
        done.append(window)
    return done


def shares(windows: Sequence[Window]) -> dict[str, float]:
    counts = Counter(itertools.chain.from_iterable(window.sources for window in windows))
    return {name: count / counts.total() for name, count in counts.items()}
