"""The bandit: UCB1 over sources, dice, epoch penalty, coverage bonus, floors and caps. docs/FIREHOSE-BANDIT.md.

State in, plan out: a plan follows from (seed, window number, state) alone, and the state is JSON that round-trips
exactly. Unusual: the steps of a window are dealt, not drawn one by one. Each source's number of steps is its
probability times the window's length, rounded up or down, so that a window carries no more luck than it must.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from andrea.banditstate import Arm, arm_from_json, arm_to_json, check_state
from andrea.coverage import Coverage
from andrea.philox import generator
from andrea.recipe import BanditSpec, FirehoseSpec
from andrea.rewards import Gains
from andrea.window import Window

Floats = NDArray[np.float64]


class Corpus(Protocol):
    """What the bandit must know of the tokens; the same answers every time it is asked."""

    def document_counts(self) -> Mapping[str, int]: ...

    def epochs(self, source: str, pulls: int) -> float:
        """Documents drawn by `pulls` pulls, repeats and parts included, / documents."""

    def touched(self, sources: Sequence[str], pulls: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(k,) places in the sorted names and (k,) documents that the steps on `sources` read; `pulls` came before."""


@dataclass(frozen=True)
class Ranking:
    """Why a window looks as it does: one value an arm, in the order of `Bandit.names`."""

    eligible: NDArray[np.bool_]
    bonus: Floats
    penalty: Floats
    index: Floats  # UCB1; inf while the arm is cold
    focus: NDArray[np.bool_]
    weight: Floats  # after floors and caps; 0 where not eligible
    probability: Floats  # weight / sum of weights


class Bandit:
    """The policy "bandit"."""

    def __init__(self, spec: FirehoseSpec, seed: int, corpus: Corpus) -> None:
        assert spec.bandit is not None
        self.spec: BanditSpec = spec.bandit
        self.seed, self.corpus = seed, corpus
        counts = corpus.document_counts()
        self.names = tuple(sorted(counts))  # the order of keys in the experiment file decides nothing
        self.least, self.most = spec.window_steps
        self.arms = {name: Arm() for name in self.names}
        self.coverage = Coverage([counts[name] for name in self.names])
        self._gains = Gains(self.spec.reward)
        self._base = self._row(spec.weights)
        self._floor, self._cap = self._row(self.spec.floors), self._row(self.spec.caps)
        warm = set(self.spec.curriculum_warmup_sources)
        # what can be drawn at all: a cap above 0, and a weight or a floor above 0
        self._open = (self._cap > 0) & ((self._base > 0) | (self._floor > 0))
        self._warm = self._open & np.array([name in warm for name in self.names])

    def plan(self, number: int, start: int) -> Window:
        """Window `number`, beginning after step `start`; cut where the curriculum warm-up ends."""
        dice = generator(self.seed, "window", number)
        length = self.least + int(dice.random() * (self.most - self.least + 1))
        if start < self.spec.curriculum_warmup_steps:
            length = min(length, self.spec.curriculum_warmup_steps - start)
        ranking = self.rank(number, start)
        places = np.searchsorted(np.cumsum(ranking.probability), (np.arange(length) + dice.random()) / length, "right")
        places = np.minimum(places, np.flatnonzero(ranking.probability)[-1])  # the sum may end just under 1
        dealt = dice.permutation(places)
        overdue = self._overdue(number, ranking.eligible)[:length]
        if overdue:
            dealt = dice.permutation(np.array([*overdue, *dealt[: length - len(overdue)]]))
        return Window(number, start, tuple([self.names[arm] for arm in dealt.tolist()]))

    def rank(self, number: int, start: int) -> Ranking:
        """Everything that decides the shares of window `number`."""
        spec, arms = self.spec, list(self.arms.values())
        dice = generator(self.seed, "focus", number)
        eligible = self._eligible(start)
        pulls = np.array([arm.pulls for arm in arms])
        epochs = np.array([self.corpus.epochs(name, arm.pulls) for name, arm in self.arms.items()])
        bonus = 1 + spec.coverage_bonus * np.maximum(0, 1 - self.coverage.shares() / spec.coverage_until)
        penalty = 1 / (1 + epochs)
        explore = spec.exploration * np.sqrt(math.log(max(1, int(pulls.sum()))) / np.maximum(pulls, 1))
        index = np.where(pulls < spec.cold_start, np.inf, self._rewards(eligible) + explore)
        fresh = eligible & (epochs < spec.focus_epochs)
        able = fresh if fresh.any() else eligible
        order = np.lexsort((dice.random(len(arms)), -index, ~able))  # able first, best first, ties by dice
        low, high = spec.focus_sources
        focus = np.zeros(len(arms), bool)
        focus[order[: low + int(dice.random() * (high - low + 1))]] = True
        focus &= able
        tentative = self._base * np.where(focus, 1.0, spec.background) * bonus * penalty
        weight = np.where(eligible, np.minimum(np.maximum(tentative, self._floor), self._cap), 0.0)
        return Ranking(eligible, bonus, penalty, index, focus, weight, weight / weight.sum())

    def credit(self, window: Window, losses: Sequence[float]) -> None:
        """Learn from a finished window. A loss that is not finite counts as a pull and teaches nothing."""
        assert len(losses) == len(window.sources), f"{len(losses)} losses for {len(window.sources)} steps"
        before = {name: self.arms[name].pulls for name in dict.fromkeys(window.sources)}
        for name, loss in zip(window.sources, losses, strict=True):
            arm = self.arms[name]
            arm.pulls += 1
            arm.window = window.number
            if math.isfinite(loss):
                arm.signal.hear(float(loss), self.spec.reward, self._gains)
        if (self.coverage.shares() < 1).any():
            self.coverage.add(*self.corpus.touched(window.sources, before))

    def learned(self) -> dict[str, dict[str, float]]:
        """Mean reward and share of documents seen, rounded: for people, nothing goes on from it."""
        shares = self.coverage.shares().tolist()
        return {
            name: {"reward": float(f"{arm.signal.reward:.5g}"), "coverage": float(f"{shares[i]:.5g}")}
            for i, (name, arm) in enumerate(self.arms.items())
        }

    def state(self) -> dict[str, Any]:
        documents, text = self.coverage.documents.tolist(), self.coverage.to_text
        arms = {name: arm_to_json(arm, documents[i], text(i)) for i, (name, arm) in enumerate(self.arms.items())}
        return {"policy": "bandit", "arms": arms}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over `state`; CheckpointError unless it is the state of a bandit over these very arms."""
        arms = check_state(state, self.names)
        documents = self.coverage.documents.tolist()
        self.arms = {name: arm_from_json(arms[name], documents[i], name) for i, name in enumerate(self.names)}
        for i, name in enumerate(self.names):
            self.coverage.set_text(i, arms[name]["seen"], name)

    def _row(self, values: Mapping[str, float]) -> Floats:
        return np.array([values[name] for name in self.names], np.float64)

    def _rewards(self, eligible: NDArray[np.bool_]) -> Floats:
        """Mean rewards; under the kind "learning" relative to the greatest, if that is above 1."""
        rewards = np.array([arm.signal.reward for arm in self.arms.values()])
        if self.spec.reward.kind == "fall":
            return rewards
        return rewards / max(1.0, float(rewards[eligible].max()))

    def _eligible(self, start: int) -> NDArray[np.bool_]:
        """Arms that may be drawn after step `start`: the warm-up's during the warm-up, all after."""
        return self._warm if start < self.spec.curriculum_warmup_steps else self._open

    def _overdue(self, number: int, eligible: NDArray[np.bool_]) -> list[int]:
        """Eligible arms that rested for more than `longest_rest` windows, the longest first."""
        last = [arm.window for arm in self.arms.values()]
        late = [i for i, open_ in enumerate(eligible.tolist()) if open_ and number - last[i] > self.spec.longest_rest]
        return sorted(late, key=last.__getitem__)
