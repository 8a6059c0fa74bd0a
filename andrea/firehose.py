"""The firehose: from rewards to window plans, which say what source each step draws from.

A window is the run of steps between two reshuffles. A policy sees the losses of a whole window at once and plans the
next one; it never learns how long the run will be, so that raising `train.steps` leaves every window as it was.
The fixed policy draws by constant weights; another policy takes its place behind the same four methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from andrea.errors import CheckpointError
from andrea.experiment import Experiment, FirehoseSpec
from andrea.philox import generator


@dataclass(frozen=True)
class Window:
    """Plan of steps `start + 1` to `start + len(sources)`; numbers count from 0. One source a step."""

    number: int
    start: int
    sources: tuple[str, ...]


class Firehose(Protocol):
    """A policy. `state` and `restore` carry everything that `plan` depends on, as plain JSON values."""

    def plan(self, number: int, start: int) -> Window: ...

    def credit(self, window: Window, losses: Sequence[float]) -> None:
        """Learn from a finished window; `losses` in nats per token, one a step."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


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

    def state(self) -> dict[str, Any]:
        return {"policy": "fixed"}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("policy") != "fixed":
            raise CheckpointError(
                'the state must come from the firehose policy "fixed"',
                got=state.get("policy"),
                fix="set firehose.policy to what the checkpoint was made with",
            )


def open_firehose(experiment: Experiment) -> Firehose:
    """The experiment's policy, before its first window."""
    return FixedFirehose(experiment.firehose, experiment.train.seed, list(experiment.sources))
