"""The CPU engine: the whole interface of Engine on NumPy's BLAS and compiled loops.

A microbatch's rows are cut into partitions (train.partitions). A partition runs forward and backward alone, on its
own activations and into its own gradient; the gradients are then added in order. The cut stands in the experiment,
so the thread count changes the speed and never the bits.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine import blas
from andrea.engine.arena import Arena
from andrea.engine.buffers_cpu import cpu_buffers, cut_rows
from andrea.engine.checks import check_prompts, check_state, check_tokens, each_batch
from andrea.engine.generate import Generator, generate
from andrea.engine.interface import Choice, Snapshot
from andrea.engine.kernels import Array, Kernels
from andrea.engine.layout import views
from andrea.engine.plan import MemoryPlan, make_plan
from andrea.engine.program import Program
from andrea.engine.update import Update
from andrea.engine.workers import Workers
from andrea.errors import EngineError
from andrea.experiment import Shape, TrainSpec


class CpuEngine:
    """`kernels` decides how ops are computed; dtype float64 goes with the reference twins and is for tests."""

    def __init__(self, shape: Shape, train: TrainSpec, threads: int, kernels: Kernels, dtype: str = "float32") -> None:
        if threads < 1:
            raise EngineError("the engine needs at least one thread", got=threads, fix="pass --threads 1 or more")
        self._shape, self._train, self._kernels = shape, train, kernels
        rows = train.batch_size // train.microbatches
        self._cut = cut_rows(rows, train.partitions, shape.context)
        self._plan = make_plan(cpu_buffers(shape, rows, train.partitions, dtype))
        arena = Arena(self._plan)
        buffers = arena.take_all()
        arena.seal()
        self._workers = Workers(min(threads, train.partitions))
        self._weights, self._m, self._v = (buffers[name] for name in ("weights", "m", "v"))
        self._parts = [_strip(buffers, f"{p}.") for p in range(self._cut.partitions)]
        grads = [part["grad"] for part in self._parts]
        self._update = Update(shape, train, kernels, self._workers, buffers, grads)
        named, dnamed = views(self._weights, shape), views(grads[0], shape)
        self._generator = Generator(shape, kernels, named, dnamed, self._parts[0], buffers)
        self._programs = [self._build_programs(p, rows) for p in range(self._cut.partitions)]
        self._step = 0

    def plan(self) -> MemoryPlan:
        """Every buffer that the engine holds."""
        return self._plan

    def load(self, weights: Array, m: Array, v: Array, step: int) -> None:
        """Take over a state: flat float32 vectors in layout order."""
        check_state(self._shape, weights, m, v)
        self._weights[:], self._m[:], self._v[:] = weights, m, v
        self._step = step
        self._update.clear()

    def run(
        self, batches: Iterable[NDArray[np.int32]], lrs: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """One update a batch. S batches (B, T+1) int32, lrs (S,); returns losses and gradient norms (S,) float32.

        Losses are in nats, means over the batch. From a loss or norm that is not finite on, nothing is updated.
        """
        each = each_batch(self._shape, batches, self._train.batch_size, len(lrs))
        losses, norms = np.zeros(len(lrs), np.float32), np.zeros(len(lrs), np.float32)
        frozen = False
        with blas.one_thread(), np.errstate(all="ignore"):
            for s, batch in enumerate(each):
                loss = self._gradients(batch)
                norm = self._update.norm()
                losses[s], norms[s] = loss, norm
                frozen = frozen or not (math.isfinite(losses[s]) and math.isfinite(norms[s]))
                if frozen:
                    self._update.clear()
                else:
                    self._step += 1
                    self._update.apply(norm, float(lrs[s]), self._step)
        return losses, norms

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        """Copies of the state, in new memory or in that of an earlier snapshot."""
        places = into or Snapshot(0, *(np.empty_like(self._weights) for _ in range(3)))
        for place, values in zip((places.weights, places.m, places.v), (self._weights, self._m, self._v), strict=True):
            np.copyto(place, values)
        return Snapshot(self._step, places.weights, places.m, places.v)

    def state(self) -> dict[str, Any]:
        """Nothing: weights, m, v and the step are all."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is nothing to restore."""

    def versions(self) -> dict[str, str]:
        """Nothing beside andrea.engine.versions()."""
        return {}

    def evaluate(self, blocks: NDArray[np.int32]) -> NDArray[np.float64]:
        """Nats of each block, summed over its T targets. blocks (N, T+1) int32; returns (N,) float64."""
        check_tokens(self._shape, blocks, (len(blocks),))
        group, parts = self._cut.group, self._cut.partitions
        nats = np.zeros(len(blocks))

        def run(p: int) -> None:
            for start in range(p * group, len(blocks), parts * group):
                part = blocks[start : start + group]
                program = self._programs[p](len(part))
                self._forward(program, part)
                nats[start : start + group] = program.losses.reshape(len(part), -1).sum(axis=1, dtype=np.float64)

        with blas.one_thread():
            self._workers.each(parts, run)
        return nats

    def generate(self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int) -> list[list[int]]:
        """`tokens` new tokens for each prompt of 1 to T - 1 tokens; see andrea.engine.generate."""
        check_prompts(self._shape, prompts, tokens, choice)
        with blas.one_thread():
            return generate(self._generator, prompts, tokens, choice, seed, step)

    def begin_generate(
        self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
    ) -> Callable[[], list[list[int]]]:
        """generate() in two halves, of which the second does it all."""
        return lambda: self.generate(prompts, tokens, choice, seed, step)

    def describe(self) -> str:
        """One line: what runs, and why."""
        threads = "1 thread" if self._workers.threads == 1 else f"{self._workers.threads} threads"
        return (
            f"engine cpu: fp32, {threads}, {self._cut.partitions} partitions, "
            f"matrix products by {blas.describe()}, asked for by train.engine"
        )

    def gradient(self, batch: NDArray[np.int32]) -> tuple[float, Array]:
        """Mean loss and flat mean gradient of one batch (B, T+1), without an update: to look at, and for tests."""
        check_tokens(self._shape, batch, (self._train.batch_size,))
        with blas.one_thread():
            loss = self._gradients(batch)
        total: Array = np.sum([part["grad"] for part in self._parts], axis=0) / self._train.microbatches
        self._update.clear()
        return loss, total

    def _gradients(self, batch: NDArray[np.int32]) -> float:
        """Add one batch's gradient, microbatch by microbatch; the mean loss."""
        sums = np.zeros(self._cut.partitions)

        def run(p: int) -> None:
            for micro in np.split(batch, self._train.microbatches):
                first, last = self._cut.spans[p]
                for start in range(first, last, self._cut.group):
                    part = micro[start : min(start + self._cut.group, last)]
                    program = self._programs[p](len(part))
                    self._forward(program, part)
                    sums[p] += program.losses.sum(dtype=np.float64)
                    program.backward()

        self._workers.each(self._cut.partitions, run)
        tokens: int = batch.shape[0] * self._shape.context
        return float(sum(sums.tolist()) / tokens)

    @staticmethod
    def _forward(program: Program, rows: NDArray[np.int32]) -> None:
        program.ids[:] = rows[:, :-1]
        program.targets.reshape(len(rows), -1)[:] = rows[:, 1:]
        program.forward()

    def _build_programs(self, p: int, rows: int) -> Callable[[int], Program]:
        """This partition's program for a group of so many rows, all made here."""
        context = self._shape.context
        weights, grads = views(self._weights, self._shape), views(self._parts[p]["grad"], self._shape)
        scale = 1 / (rows * context)
        made = [
            Program(self._shape, self._kernels, weights, grads, self._parts[p], size, context, scale)
            for size in range(1, self._cut.group + 1)
        ]
        return lambda size: made[size - 1]


def _strip(buffers: dict[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): b for name, b in buffers.items() if name.startswith(prefix)}
