"""What the CUDA engine would launch, written down without a card: the calls of its graphs with what they read and write.

Two questions are answered on the list. `contents`: what does memory hold after the step, when every launch is a function
of what it reads? Equal contents are equal bits, as the kernels repeat. `races`: which launches on the two streams touch
the same bytes, one of them writing, with nothing that orders them?
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_cuda_binding import PaperDevice, PaperGraph, PaperLibrary, PaperStream

from andrea.engine.cuda import engine as engine_module
from andrea.engine.cuda import nvrtc
from andrea.engine.cuda.gate import _KERNEL, ACT_NAMES, bind, signatures
from andrea.engine.cuda.nvrtc import source_text
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.layout import count, parameters
from andrea.experiment import Shape, TrainSpec

CELL = 16  # bytes: every tensor of ours starts at a multiple
# what a step finds; all else is noise. A plain head leaves the padding of the logits as it is.
GIVEN = ("weights", "m", "v", "copy", "gradients", "logits", "batch", "control", "ln_where", "chunks", "mlp_maps")
FP8_PASSING = ("fp8_operand", "fp8_stream")  # of precision fp8's buffers, all others are there before a step
# what a kernel with a pointer into it may also read there, though the pointer is not const
ADDED_TO = ("gradients", "weights", "m", "v", "copy", "control", "logits")
MAIN, SIDE = "main", "side"


@dataclass(frozen=True)
class Launch:
    """`what` is the name and everything that is not memory; `sync` is fork, barrier or join instead.

    A product also says its operations, and the bytes of its operands, which may be parts of what it reads and writes.
    """

    stream: str = MAIN
    what: str = ""
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    sync: str = ""
    flops: float = 0.0
    passed: int = 0

    @property
    def nbytes(self) -> int:
        return self.passed or sum(t.nbytes for t in (*self.reads, *self.writes))


@cache
def constants(file: str) -> dict[str, list[bool]]:
    """By kernel, for each parameter: whether it is const."""
    return {
        name: [re.match(r"\s*const\b", part) is not None for part in text.split(",")]
        for name, text in _KERNEL.findall(source_text(file))
    }


class TraceDevice(PaperDevice):
    """Keeps every launch; `graphs` are those of step, evaluation and one token."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = PaperStream()
        self.trace: list[Launch] = []
        self.graphs: list[list[Launch]] = []
        self.norms: list[Tensor] = []

    def kernel(self, file: str, name: str, precision: str, defines: Any = None) -> Any:
        signature, const = signatures(file)[name], constants(file)[name]

        def launch(
            grid: Any, block: int, *values: Any, shared: int = 0, side: bool = False, beside: bool = False
        ) -> None:
            assert not beside, f"{name}: nothing in a step may run where only the host puts it in order"
            bind(name, signature, values, ACT_NAMES[nvrtc.ACT[precision]])
            tensors = [(v, c) for v, c in zip(values, const, strict=True) if isinstance(v, Tensor)]
            scalars = [v for v in values if not isinstance(v, Tensor)]
            reads, writes = ([v for v, c in tensors if c is kind] for kind in (True, False))
            if name == "k_attn_bwd_dkdv":  # writes beside what k_attn_bwd_dq wrote
                reads += writes
            if name == "k_layernorm_bwd_params":
                writes = self.norms
            stream = SIDE if side else MAIN
            self.trace.append(Launch(stream, f"{name}{grid}{block}{shared}{scalars}", tuple(reads), tuple(writes)))

        return launch

    def record(self, work: Any) -> Any:
        self.trace = []
        work()
        self.graphs.append(self.trace)
        return PaperGraph()

    def clear(self, target: Tensor) -> None:
        self.trace.append(Launch(MAIN, "clear", (), (target,)))

    @property
    def side(self) -> Any:
        return _TraceSide(self)


class _TraceSide:
    def __init__(self, device: TraceDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self._device.trace.append(Launch(sync=name))


class TraceLibrary(PaperLibrary):
    def __init__(self, device: TraceDevice, precision: str, workspace: Tensor) -> None:
        super().__init__(device, precision, workspace)
        self._device = device

    def product(
        self, out: Any, a: Any, b: Any, add: Any = None, batch: int = 1, *, side: bool = False, **more: Any
    ) -> Any:
        super().product(out, a, b, add, batch, side=side, **more)
        read = [a, b, *([add] if add else [])]
        sizes = [(o.rows, o.columns, o.stride, o.transposed, o.step) for o in (out, *read)]
        launch = Launch(
            SIDE if side else MAIN,
            f"{sizes}{batch}",
            tuple(o.tensor for o in read),
            (out.tensor,),
            flops=2.0 * out.rows * out.columns * (a.rows if a.transposed else a.columns) * batch,
            passed=sum((batch if o.step else 1) * o.rows * o.columns * o.tensor.itemsize for o in (out, *read)),
        )
        return lambda: self._device.trace.append(launch)


def traced(
    shape: Shape, train: TrainSpec, monkeypatch: pytest.MonkeyPatch, *, plain: bool = False, arch: int = 90
) -> TraceDevice:
    """A started engine's device; device.engine is the engine."""
    device: Any = TraceDevice()
    device.arch = arch
    monkeypatch.setattr(engine_module, "Device", lambda: device)
    monkeypatch.setattr(engine_module, "CublasLt", TraceLibrary)
    engine: Any = engine_module.CudaEngine(shape, train, plain=plain)
    gradients = engine._buffers["gradients"]
    device.norms = [gradients.part(p.offset, p.size) for p in parameters(shape) if p.kind in ("gamma", "beta")]
    engine.load(*[np.zeros(count(shape), np.float32)] * 3, 0)
    device.engine = engine
    return device


@dataclass
class Memory:
    """One number for every CELL of the arena: a name for what it holds."""

    buffers: dict[str, Tensor]
    noise: int
    cells: Any = field(init=False)

    def __post_init__(self) -> None:
        self._start = min(t.address for t in self.buffers.values())
        end = max(t.address + t.nbytes for t in self.buffers.values())
        rng = np.random.default_rng(self.noise)
        self.cells = rng.integers(0, 2**63, (end - self._start) // CELL + 1, np.uint64)
        for name in self.buffers:
            if name in GIVEN or (name.startswith("fp8_") and name not in FP8_PASSING):
                self.set(self.buffers[name], name)

    def span(self, t: Tensor) -> slice:
        first = t.address - self._start
        return slice(first // CELL, -(-(first + t.nbytes) // CELL))

    def set(self, t: Tensor, what: str) -> None:
        held, name = self.cells[self.span(t)], hashlib.blake2b(what.encode(), digest_size=8).digest()
        held[:] = np.frombuffer(name, np.uint64)[0] + np.arange(len(held), dtype=np.uint64)

    def name(self, tensors: list[Tensor]) -> str:
        parts = [hashlib.blake2b(self.cells[self.span(t)].tobytes(), digest_size=8).hexdigest() for t in tensors]
        return " ".join(parts)


def contents(device: Any, noise: int, graph: int = 0) -> dict[str, str]:
    """What a step leaves in gradients, losses and state, as names; buffers that nobody filled hold `noise`."""
    buffers = device.engine._buffers
    memory = Memory(dict(buffers), noise)
    added = [buffers[name] for name in ADDED_TO]
    for launch in device.graphs[graph]:
        also = [w for w in launch.writes if any(_meet(w, t) for t in added) and launch.what != "clear"]
        if launch.what.startswith("[("):  # a product reads what it adds to, and says so
            also = []
        said = launch.what + memory.name([*launch.reads, *also])
        for i, w in enumerate(launch.writes):
            memory.set(w, f"{i} {said}")
    kept = ("gradients", "losses", "weights", "m", "v", "copy", "control", "window_losses", "window_norms")
    return {name: memory.name([buffers[name]]) for name in kept}


def races(device: Any, graph: int = 0) -> list[str]:
    """Pairs of launches on different streams that are not ordered, and meet in memory with a write."""
    done: dict[str, list[Launch]] = {MAIN: [], SIDE: []}
    seen = {MAIN: 0, SIDE: 0}  # how many of the other stream's launches each stream knows to be done
    mark: int | None = None
    found = []
    for launch in device.graphs[graph]:
        if launch.sync == "fork":
            seen[SIDE] = len(done[MAIN])
        elif launch.sync == "join":
            seen[MAIN], mark = len(done[SIDE]), None
        elif launch.sync == "barrier":
            seen[MAIN], mark = mark if mark is not None else seen[MAIN], len(done[SIDE])
        else:
            other = MAIN if launch.stream == SIDE else SIDE
            open_ones = done[other][seen[launch.stream] :]
            found += [f"{launch.what} and {o.what}" for o in open_ones if _conflict(launch, o)]
            done[launch.stream].append(launch)
    return found


def _conflict(a: Launch, b: Launch) -> bool:
    return any(_meet(x, y) for x in a.writes for y in (*b.reads, *b.writes)) or any(
        _meet(x, y) for x in a.reads for y in b.writes
    )


def _meet(a: Tensor, b: Tensor) -> bool:
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
