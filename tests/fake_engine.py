"""An engine without mathematics: every number it returns follows from weights and tokens, quickly and exactly."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from andrea.engine import Choice, Snapshot
from andrea.engine.plan import MemoryPlan
from andrea.experiment import Experiment
from andrea.philox import generator


class FakeEngine:
    """`bad_step` gets a NaN loss, `skipped_step` a norm of 0. `on_step` and `on_generate` are called so that a test can act in the middle."""

    def __init__(self, experiment: Experiment) -> None:
        self.vocab_size = experiment.vocab_size
        self.bad_step: int | None = None
        self.skipped_step: int | None = None
        self.calls: list[int] = []
        self.on_step: Callable[[int], None] = lambda step: None
        self.on_generate: Callable[[int], None] = lambda step: None

    def plan(self) -> MemoryPlan:
        return MemoryPlan(())

    def load(self, weights: NDArray[np.float32], m: NDArray[np.float32], v: NDArray[np.float32], step: int) -> None:
        self.weights, self.m, self.v, self.step = weights.copy(), m.copy(), v.copy(), step

    def run(
        self, batches: NDArray[np.int32], lrs: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.calls.append(len(lrs))
        losses = np.zeros(len(lrs), np.float32)
        for i, (batch, lr) in enumerate(zip(batches, lrs, strict=True)):
            if self.step + 1 == self.bad_step:
                losses[i:] = np.nan
                break
            self.step += 1
            seen = np.float32(batch.sum() % 1009) / np.float32(1009)
            self.m = np.float32(0.9) * self.m + seen
            self.v = np.float32(0.99) * self.v + seen * seen
            self.weights = self.weights + np.float32(lr) * np.sin(self.m)
            losses[i] = 2 + seen + np.float32(0.1) * np.abs(self.weights[0])
            self.on_step(self.step)
        norms = losses * np.float32(0.5)
        if self.skipped_step is not None and 0 <= (at := self.skipped_step - 1 - self.step + len(lrs)) < len(lrs):
            norms[at] = 0
        return losses, norms

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        places = into or Snapshot(0, *(np.empty_like(self.weights) for _ in range(3)))
        for place, values in zip((places.weights, places.m, places.v), (self.weights, self.m, self.v), strict=True):
            np.copyto(place, values)
        return Snapshot(self.step, places.weights, places.m, places.v)

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: dict[str, object]) -> None: ...

    def versions(self) -> dict[str, str]:
        return {}

    def evaluate(self, blocks: NDArray[np.int32]) -> NDArray[np.float64]:
        return blocks.sum(axis=1) * 1e-3 + float(np.abs(self.weights[:10]).sum())

    def generate(self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int) -> list[list[int]]:
        self.on_generate(step)
        first = int(self.weights[0] * 1e4) % 7
        return [
            (generator(seed, "sample", step, i).integers(97, 110, tokens) + first).tolist() for i in range(len(prompts))
        ]

    def begin_generate(
        self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
    ) -> Callable[[], list[list[int]]]:
        return lambda: self.generate(prompts, tokens, choice, seed, step)

    def describe(self) -> str:
        return "fake engine"
