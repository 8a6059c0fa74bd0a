"""The CUDA engine: the whole interface of Engine on one card.

A step (all microbatches, norm, clipping, AdamW) is one graph, replayed for a window without waiting for the card: what
changes from step to step lies in device memory, and losses stay there until the window ends.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine.checks import check_prompts, check_state, check_tokens, each_batch
from andrea.engine.cuda.arena import DeviceArena
from andrea.engine.cuda.blocks import BLOCK
from andrea.engine.cuda.buffers import NORM_CHUNK, WINDOW_STEPS, cuda_buffers, overlaps
from andrea.engine.cuda.checks import check_engine_state, check_sizes
from andrea.engine.cuda.cublaslt import CublasLt
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.feed import Feed
from andrea.engine.cuda.generate import Advance, Sampler, TokenModel, token_graph
from andrea.engine.cuda.matrix import Call, FastMatrix, Matrix, PlainMatrix
from andrea.engine.cuda.matrix_fp8 import Fp8Matrix, Scales, fast_product, plain_product
from andrea.engine.cuda.mlp_fused import FusedMlp, is_fused
from andrea.engine.cuda.model import Model
from andrea.engine.cuda.tensor import HOST, Tensor
from andrea.engine.cuda.text import cluster, text_kernel
from andrea.engine.cuda.weights import LOW_PRECISION, chunk_table
from andrea.engine.interface import Choice, Floats, Snapshot
from andrea.engine.layout import count, parameters
from andrea.engine.plan import MemoryPlan, make_plan
from andrea.errors import EngineError
from andrea.experiment import Shape, TrainSpec

FIRST_SCALE = 65536.0  # of fp16's loss; it halves within a few steps where that is too much
GOOD, STREAK, SKIPPED = 6, 7, 8  # words of struct Control
RESULTS = ("control", "window_losses", "window_norms")
ELEMENTS = 4 * BLOCK  # of one block of k_zero_grads


class CudaEngine:
    """`plain` takes the hand-written matrix products instead of cuBLASLt; for tests."""

    def __init__(self, shape: Shape, train: TrainSpec, *, plain: bool = False) -> None:
        self._shape, self._train, self._plain = shape, train, plain
        self._rows = train.batch_size // train.microbatches
        self._plan = make_plan(
            cuda_buffers(shape, self._rows, train.precision, train.microbatches, recompute=train.recompute)
        )
        self._device = device = Device()
        check_sizes(shape, device)
        arena = DeviceArena(device, self._plan)
        self._buffers = {b.name: arena[b.name] for b in self._plan.buffers}
        if "cache" in self._buffers:
            self._buffers |= by_layer(self._buffers["cache"])
        self._library = CublasLt(device, train.precision, self._buffers["library"])
        device.write(self._buffers["chunks"], chunk_table(shape, train.precision in LOW_PRECISION))
        norms = [p.offset for p in parameters(shape) if p.kind == "gamma"]  # beta follows its gamma
        device.write(self._buffers["ln_where"], np.array(norms, np.int32))
        self._scales = Scales(device, shape, self._rows, self._buffers) if train.precision == "fp8" else None
        self._feed = Feed(device, shape, train, self._buffers["batch"])
        # what a window's end brings back, in pinned memory: one wait for all
        self._results = {name: pinned_like(device, self._buffers[name]) for name in RESULTS}
        self._control = self._results["control"]
        self._control.view(np.float32)[0] = FIRST_SCALE if train.precision == "fp16" else 1.0
        self._step, self._built = 0, False
        arena.seal()

    def plan(self) -> MemoryPlan:
        """Every buffer that the engine holds on the card."""
        return self._plan

    def load(self, weights: Floats, m: Floats, v: Floats, step: int) -> None:
        """Take over a state: flat float32 vectors in layout order. The first load chooses algorithms and captures graphs."""
        check_state(self._shape, weights, m, v)
        if not self._built:
            self._build()
        for name, values in (("weights", weights), ("m", m), ("v", v)):
            self._device.write(self._buffers[name], values)
        self._copy_weights()
        self._device.wait()
        self._step = step

    def run(self, batches: Iterable[NDArray[np.int32]], lrs: NDArray[np.float64]) -> tuple[Floats, Floats]:
        """One update a batch. S batches (B, T+1) int32, lrs (S,); returns losses and gradient norms (S,) float32.

        Losses are in nats, means over the batch. From a loss or norm that is not finite on, nothing is updated. In fp16
        a gradient that overflows skips its step: its norm is then given as 0.
        """
        each = each_batch(self._shape, batches, self._train.batch_size, len(lrs))
        losses, norms = np.zeros(len(lrs), np.float32), np.zeros(len(lrs), np.float32)
        frozen = False
        for start in range(0, len(lrs), WINDOW_STEPS):
            part = slice(start, start + WINDOW_STEPS)
            losses[part], norms[part] = self._window(each, lrs[part], frozen)
            frozen = bool(self._control[4])
        next(each, None)
        return losses, norms

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        """Copies of the state, in pinned memory: new, or that of an earlier snapshot."""
        places = into or Snapshot(0, *(self._device.pinned(4 * count(self._shape)).view(np.float32) for _ in range(3)))
        for name in ("weights", "m", "v"):
            self._device.fetch(self._buffers[name], getattr(places, name))
        return Snapshot(self._step, places.weights, places.m, places.v)

    def state(self) -> dict[str, Any]:
        """What an exact resume needs beside weights, m and v, as JSON values."""
        return {
            "loss_scale": float(self._control.view(np.float32)[0]),
            "counters": self._control[[GOOD, STREAK, SKIPPED]].tolist(),
            "identity": self._library.identity,
            "algorithms": dict(self._library.algorithms),
            **({"fp8": self._scales.state()} if self._scales else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what state() gave; before the first load()."""
        if self._built:
            raise EngineError(
                "restore() comes before the first load()", got="a started engine", fix="report this: it is a defect"
            )
        scale, counters, identity, algorithms = check_engine_state(state)
        self._control.view(np.float32)[0] = scale
        self._control[[GOOD, STREAK, SKIPPED]] = counters
        if self._scales:
            self._scales.restore(state.get("fp8"))
        if not self._library.restore(identity, algorithms):
            print(
                f"the run's matrix algorithms were chosen on {identity}; now it is {self._library.identity}: "
                "going on with new ones, so results may differ in their last bits",
                flush=True,
            )

    def evaluate(self, blocks: NDArray[np.int32]) -> NDArray[np.float64]:
        """Nats of each block, summed over its T targets. blocks (N, T+1) int32; returns (N,) float64."""
        check_tokens(self._shape, blocks, (len(blocks),))
        nats = np.zeros(len(blocks))
        for start in range(0, len(blocks), self._rows):
            part = blocks[start : start + self._rows]
            self._feed.send_rows(np.resize(part, (self._rows, part.shape[1])))  # a last part is filled by repeats
            self._evaluate_graph.launch(self._device.stream)
            nats[start : start + len(part)] = self._device.read(self._buffers["sums"])[: len(part)]
        return nats

    def generate(self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int) -> list[list[int]]:
        """`tokens` new tokens for each prompt of 1 to T - 1 tokens; see andrea.engine.cuda.generate."""
        check_prompts(self._shape, prompts, tokens, choice)
        return self._sampler.generate(prompts, tokens, choice, seed, step)

    def begin_generate(
        self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
    ) -> Callable[[], list[list[int]]]:
        """generate() in two halves, between which only evaluate() and snapshot() may be called."""
        check_prompts(self._shape, prompts, tokens, choice)
        return self._sampler.begin(prompts, tokens, choice, seed, step)

    def describe(self) -> str:
        """One line: what runs, and why."""
        matrices = "our own plain kernels" if self._plain else f"cuBLASLt {self._library.version}"
        again = ", activations made again in backward" if self._train.recompute else ""
        return (
            f"engine cuda: {self._train.precision} on {self._device.name} (sm_{self._device.arch}), matrix products by "
            f"{matrices}{again}, {self._plan.total / 2**30:.2f} GiB of its memory, asked for by train.engine"
        )

    def versions(self) -> dict[str, str]:
        """What may change the bits of a result."""
        return {**self._device.versions(), "cublaslt": str(self._library.version)}

    @property
    def skipped(self) -> int:
        """fp16: updates left out so far because a gradient overflowed."""
        return int(self._control[SKIPPED])

    def gradient(self) -> Floats:
        """The flat gradient of the last step, as it was added up: times loss scale and microbatches. For tests."""
        return self._device.read(self._buffers["gradients"].part(0, count(self._shape)))

    def _window(
        self, each: Iterator[NDArray[np.int32]], lrs: NDArray[np.float64], frozen: bool
    ) -> tuple[Floats, Floats]:
        """The next len(lrs), at most WINDOW_STEPS, steps; the card is waited for at the end only."""
        self._control[1:6] = 0  # loss, factor, apply, frozen, slot
        self._control[4] = frozen
        self._device.send(self._buffers["control"], self._control)
        for s, batch in enumerate(islice(each, len(lrs))):
            self._feed.send(s, batch, float(lrs[s]), self._step + s + 1)
            self._step_graph.launch(self._device.stream)
        if len(lrs) < WINDOW_STEPS:
            next(each, None)  # while the card is at work: to the end
        for name, place in self._results.items():
            self._device.receive(self._buffers[name], place)
        self._device.wait()
        losses, norms = (self._results[name][: len(lrs)].copy() for name in ("window_losses", "window_norms"))
        bad = ~(np.isfinite(losses) & np.isfinite(norms))
        if not frozen:
            self._step += int(np.argmax(bad)) if bad.any() else len(lrs)
        return losses, norms

    def _build(self) -> None:
        """Bind every op, choose the matrix algorithms, run once, capture. Weights are zero until the first load."""
        device, t, shape = self._device, self._train, self._shape
        side = overlaps(self._buffers["dstream"].dtype)
        model = Model(
            device, shape, t.precision, self._rows, self._matrix(side=side), self._buffers, self._scales, t.recompute
        )
        step, evaluate = self._step_calls(model), self._evaluate_calls(model)
        device.write(self._buffers["control"], self._control)
        for call in (*step, *evaluate):  # loads the kernels' code, which must not happen while capturing
            call()
        device.wait()
        self._step_graph = device.record(lambda: _run(step))
        self._evaluate_graph = device.record(lambda: _run(evaluate))
        self._sampler = self._build_sampler(model)
        self._library.save()
        if self._scales:
            self._scales.start()
        self._built = True

    def _build_sampler(self, model: Model) -> Sampler:
        """One launch for many tokens where card and sizes allow it, else a graph of one token, replayed."""
        device, shape, b, parameters = self._device, self._shape, self._buffers, model.parameters
        precision, rows = self._train.precision, b["cache.0"].shape[0]
        one_launch = not self._plain and cluster(device, shape, b["x.0"].itemsize) > 0
        if one_launch:
            advance: Advance = text_kernel(device, shape, precision, parameters, b)
            advance(0, 0, rows)  # loads its code
        else:
            advance = token_graph(device, TokenModel(device, shape, precision, parameters, b).calls())
        device.wait()
        return Sampler(device, shape, rows, advance, b, apart=one_launch and "cache" in b)

    def _matrix(self, *, side: bool) -> Matrix:
        """The products that precision and `plain` ask for; weight gradients on the side stream or not."""
        matrix: Matrix = (
            PlainMatrix(self._device, self._train.precision)
            if self._plain
            else FastMatrix(self._library, side=side, fused=self._fused())
        )
        if not self._scales:
            return matrix
        product = plain_product(self._device) if self._plain else fast_product(self._library)
        return Fp8Matrix(matrix, self._scales, product)

    def _fused(self) -> FusedMlp | None:
        """The MLP's products with GELU in them, where they exist."""
        precision, width = self._train.precision, self._shape.d_model
        if not is_fused(self._device.arch, precision, width):
            return None
        return FusedMlp(self._device, precision, self._buffers["mlp_maps"])

    def _step_calls(self, model: Model) -> list[Call]:
        b, n, share = self._buffers, count(self._shape), 1 / self._train.microbatches
        zero = self._kernel("k_zero_grads")
        gradients = b["gradients"].part(0, n)
        # beside forward, which leaves bandwidth free, where weight gradients are on the side, too, and so come after
        side, fork = overlaps(b["dstream"].dtype) and not self._plain, self._device.side.fork
        calls: list[Call] = [fork] if side else []
        calls += [lambda: zero((-(-n // ELEMENTS),), BLOCK, gradients, n, side=side)]
        calls += self._scales.begin() if self._scales else []
        for micro in range(self._train.microbatches):
            batch = self._feed.batch(micro)
            calls += [*model.forward(batch), *model.backward(batch, share)]
        return [*calls, *self._update_calls(share)]

    def _update_calls(self, share: float) -> list[Call]:
        """Norm, clipping, AdamW and the working copies."""
        b, t, n = self._buffers, self._train, count(self._shape)
        partial, final, adamw = (self._kernel(k) for k in ("k_grad_norm_partial", "k_grad_norm_final", "k_adamw"))
        parts, dynamic = -(-n // NORM_CHUNK), int(t.precision == "fp16")
        sums, control, rates, chunks = b["norm_partial"], b["control"], self._feed.rates, b["chunks"]
        gradients = b["gradients"].part(0, n)
        state = [*(b[name] for name in ("weights", "m", "v", "copy")), gradients]
        hyper = (1 - t.beta1, 1 - t.beta2, t.eps, t.weight_decay)
        windows = (b["window_losses"], b["window_norms"])
        return [
            lambda: partial((parts,), BLOCK, sums, gradients, n),
            lambda: final((1,), 1024, control, *windows, sums, parts, share, t.clip, dynamic),
            lambda: adamw((chunks.shape[0],), BLOCK, *state, chunks, control, rates, *hyper),
            *(self._scales.end() if self._scales else []),
        ]

    def _evaluate_calls(self, model: Model) -> list[Call]:
        b, rows, context, batch = self._buffers, self._rows, self._shape.context, self._feed.batch(0)
        sums = self._device.kernel("loss.cu", "k_loss_block_sums", self._train.precision)
        last: Call = lambda: sums((rows,), BLOCK, b["sums"], b["losses"], context)  # noqa: E731
        return [*model.forward(batch), *model.losses(batch), last]

    def _copy_weights(self) -> None:
        chunks = self._buffers["chunks"]
        kernel = self._kernel("k_copy_weights")
        kernel((chunks.shape[0],), BLOCK, self._buffers["copy"], self._buffers["weights"], chunks)
        _run(self._scales.weights() if self._scales else [])

    def _kernel(self, name: str) -> Kernel:
        return self._device.kernel("optimizer.cu", name, self._train.precision)


def by_layer(cache: Tensor) -> dict[str, Tensor]:
    """The parts of a cache (L, R, 2, T, C), by their names."""
    layers, *shape = cache.shape
    size = cache.size // layers
    return {f"cache.{layer}": cache.part(layer * size, *shape) for layer in range(layers)}


def pinned_like(device: Device, source: Tensor) -> NDArray[Any]:
    """Pinned zeros of a tensor's shape and type."""
    memory = device.pinned(source.nbytes).view(HOST[source.dtype]).reshape(source.shape)
    memory[:] = 0
    return memory


def _run(calls: list[Call]) -> None:
    for call in calls:
        call()
