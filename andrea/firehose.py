"""The firehose: from rewards to window plans, which say what source each step draws from.

A window is the run of steps between two reshuffles. A policy sees the losses of a whole window at once and plans the
next one; it never learns how long the run will be, so that raising `train.steps` leaves every window as it was.
The fixed policy draws by constant weights; andrea/bandit.py learns them. docs/FIREHOSE-BANDIT.md is the specification.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from andrea.bandit import Bandit, Corpus
from andrea.errors import CheckpointError
from andrea.experiment import Experiment
from andrea.philox import generator
from andrea.recipe import FirehoseSpec, PolishSpec
from andrea.window import Firehose, Window


class FixedFirehose:
    """Draws each step's source by constant relative weights; losses change nothing."""

    def __init__(self, spec: FirehoseSpec, seed: int, arms: Sequence[str]) -> None:
        self.seed = seed
        self.arms = tuple(sorted(arms))  # the order of keys in the experiment file decides nothing
        self.least, self.most = spec.window_steps
        total = np.cumsum([spec.weights[arm] for arm in self.arms])
        self.bounds = total / total[-1]

    def plan(self, number: int, start: int) -> Window:
        """Window `number`, beginning after step `start`; depends on the seed and the number alone."""
        draws = generator(self.seed, "window", number)
        length = self.least + int(draws.random() * (self.most - self.least + 1))
        arms = np.searchsorted(self.bounds, draws.random(length), side="right")
        return Window(number, start, tuple(self.arms[arm] for arm in arms))

    def credit(self, window: Window, losses: Sequence[float]) -> None:
        assert len(losses) == len(window.sources), f"{len(losses)} losses for {len(window.sources)} steps"

    def learned(self) -> dict[str, dict[str, float]]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"policy": "fixed"}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("policy") != "fixed":
            raise CheckpointError(
                'the state must come from the firehose policy "fixed"',
                got=state.get("policy"),
                fix="set firehose.policy to what the checkpoint was made with",
            )


def open_firehose(experiment: Experiment, corpus: Corpus, *, polished: bool) -> Firehose:
    """The experiment's policy before its first window; `polished` says on which side of the pivot."""
    spec, polish = experiment.firehose, experiment.polish
    if polished:
        assert polish is not None
        spec = polished_spec(spec, polish)
    if spec.policy == "bandit":
        return Bandit(spec, experiment.train.seed, corpus)
    return FixedFirehose(spec, experiment.train.seed, list(experiment.sources))


def polished_spec(spec: FirehoseSpec, polish: PolishSpec) -> FirehoseSpec:
    """`spec` after the pivot: new limits for the bandit; under the fixed policy they bound the weights themselves."""
    bounded = {name: min(max(w, polish.floors[name]), polish.caps[name]) for name, w in spec.weights.items()}
    if spec.bandit is None or spec.policy == "fixed":
        return dataclasses.replace(spec, weights=bounded)
    return dataclasses.replace(spec, bandit=dataclasses.replace(spec.bandit, floors=polish.floors, caps=polish.caps))
