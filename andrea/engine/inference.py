"""The CPU engine for a model in use: weights, one row's activations a thread, and the cache of keys and values.

It runs the training program's forward ops. Only backward needs each layer's activations kept apart, so here all layers
share one set, and the names that backward alone reads stand for buffers of forward that have the same size. The keys
and values of the first set lie in the cache itself. Every row is computed alone, so threads do not change the bits.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from andrea.engine import blas
from andrea.engine.arena import Arena
from andrea.engine.buffers_cpu import generation_buffers
from andrea.engine.checks import check_prompts, check_state, check_tokens
from andrea.engine.generate import Generator
from andrea.engine.interface import Choice, Floats
from andrea.engine.kernels import Array, Kernels, attention_work
from andrea.engine.layout import MLP_RATIO, count, views
from andrea.engine.plan import Buffer, MemoryPlan, make_plan
from andrea.engine.program import Program
from andrea.engine.workers import Workers
from andrea.errors import EngineError
from andrea.experiment import Shape
from andrea.philox import generator

MOST_THREADS = 1024
_WIDE = ("x", "y", "q", "k", "v", "att", "branch")
_ROWS = ("mean", "rstd", "losses", "total")
_UNUSED = dict.fromkeys(("dstream", "dbranch", "datt", "dq", "dk", "dv"), "branch") | {"dh": "a"}


class CpuInference:
    """Inference on `threads` threads; `kernels` decides how ops are computed."""

    def __init__(self, shape: Shape, threads: int, kernels: Kernels) -> None:
        if not 1 <= threads <= MOST_THREADS:  # each has buffers of its own
            raise EngineError(
                f"the engine needs at least one thread, and at most {MOST_THREADS:,}",
                got=threads,
                fix="leave --threads out",
            )
        self._shape, self._workers = shape, Workers(threads)
        self._plan = make_plan(inference_buffers(shape, threads))
        arena = Arena(self._plan)
        buffers = arena.take_all()
        arena.seal()
        self._weights = buffers["weights"]
        named = views(self._weights, shape)
        sets = [_program_buffers(buffers, shape, p) for p in range(threads)]
        # gradients are bound, too, and never touched
        self._programs = [Program(shape, kernels, named, named, s, 1, shape.context, 1.0) for s in sets]
        self._generator = Generator(shape, kernels, named, named, sets[0], buffers)

    def plan(self) -> MemoryPlan:
        """Every buffer that the engine holds."""
        return self._plan

    def take(self, weights: Floats) -> None:
        """Use these weights, flat float32 in layout order."""
        check_state(self._shape, weights, weights, weights)
        self._weights[:] = weights

    def stream(self, prompt: list[int], tokens: int, choice: Choice, seed: int, step: int) -> Iterator[int]:
        """`tokens` tokens after a prompt of 1 to T - 1 tokens, one by one; see andrea.engine.generate."""
        check_prompts(self._shape, [prompt], tokens, choice)
        made = self._generator.stream(prompt, tokens, choice, generator(seed, "sample", step, 0))
        return self._each(made)

    @staticmethod
    def _each(made: Iterator[int]) -> Iterator[int]:
        """The settings of a computation hold while it computes, and not between two tokens."""
        while True:
            with blas.one_thread(), np.errstate(all="ignore"):
                token = next(made, None)
            if token is None:
                return
            yield token

    def losses(self, blocks: NDArray[np.int32]) -> Floats:
        """Nats of every target. blocks (N, T+1) int32; returns (N, T) float32."""
        check_tokens(self._shape, blocks, (len(blocks),))
        found = np.zeros((len(blocks), self._shape.context), np.float32)
        threads = self._workers.threads

        def run(p: int) -> None:
            program = self._programs[p]
            for row in range(p, len(blocks), threads):
                program.ids[0], program.targets[:] = blocks[row, :-1], blocks[row, 1:]
                program.forward()
                found[row] = program.losses

        with blas.one_thread():
            self._workers.each(threads, run)
        return found

    def describe(self) -> str:
        """One line: what runs."""
        threads = self._workers.threads
        return (
            f"engine cpu: fp32, {threads} thread{'s' if threads > 1 else ''}, {self._plan.total / 2**20:,.0f} MiB, "
            f"matrix products by {blas.describe()}"
        )


def inference_buffers(shape: Shape, threads: int) -> Iterator[Buffer]:
    """All buffers, with one set of activations a thread."""
    t, c = shape.context, shape.d_model
    yield Buffer("weights", "weights", (count(shape),))
    yield from generation_buffers(shape, "float32")
    for p in range(threads):
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(_WIDE, (t, c))
        sizes |= dict.fromkeys(("h", "a"), (t, MLP_RATIO * c)) | dict.fromkeys(_ROWS, (t,))
        sizes |= {"lse": (shape.n_heads, t), "logits": (t, shape.vocab_size)}
        sizes |= {"attention": (attention_work(t, shape.d_head),)}
        for name in ("ids", "targets"):
            yield Buffer("batches", f"{p}.{name}", (t,), "int32")
        for name, size in sizes.items():
            yield Buffer("activations", f"{p}.{name}", size)


def _program_buffers(buffers: dict[str, Array], shape: Shape, p: int) -> dict[str, Array]:
    """The buffers of set `p` under all names that a program asks for."""
    own = {name.removeprefix(f"{p}."): buffer for name, buffer in buffers.items() if name.startswith(f"{p}.")}
    named = own | {name: own[other] for name, other in _UNUSED.items()}
    for i in range(2 * shape.n_layers + 1):
        named |= {f"{name}.{i}": own[name] for name in ("x", "y", "mean", "rstd")}
    for layer in range(shape.n_layers):
        named |= {f"{name}.{layer}": own[name] for name in ("q", "k", "v", "att", "lse", "h")}
        if p == 0:
            named |= {f"{name}.{layer}": buffers[f"cache.{name}"][layer] for name in ("k", "v")}
    return named
