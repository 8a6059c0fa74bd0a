"""Every launch of the CUDA engine is bound against its kernel's signature here, without a card.

A device that only keeps addresses stands in for the real one: what the gate refuses, a wrong buffer size or a missing
argument, is found on any machine.
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.engine import Choice
from andrea.engine.cuda import engine as engine_module
from andrea.engine.cuda import fp8, nvrtc
from andrea.engine.cuda.buffers import cuda_buffers
from andrea.engine.cuda.device import Kernel
from andrea.engine.cuda.gate import ACT_NAMES, signatures
from andrea.engine.cuda.inference import CudaInference
from andrea.engine.cuda.tensor import HOST, Tensor, from_device_type
from andrea.engine.cuda.tensor_map import WORDS
from andrea.engine.layout import count
from andrea.errors import CheckpointError, EngineError
from andrea.experiment import Experiment, load

EXPERIMENTS = [p for p in sorted(Path("experiments").glob("*.json")) if load(p).train.engine == "cuda"]


class PaperDevice:
    """Addresses without memory; counts launches by kernel."""

    name, arch, stream, free_bytes, shared_limit, multiprocessors = "paper", 90, None, 0, 101376, 132
    capability = (9, 0)

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.values: dict[int, np.ndarray] = {}
        self._next = 1 << 20

    def allocate(self, nbytes: int) -> int:
        self._next += -(-nbytes // 256) * 256
        return self._next - -(-nbytes // 256) * 256

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def kernel(self, file: str, name: str, precision: str, defines: Any = None) -> Kernel:
        def function(*_: Any, **__: Any) -> None:
            self.launches[name] += 1

        paper: Any = self
        return Kernel(name, function, signatures(file)[name], ACT_NAMES[nvrtc.ACT[precision]], paper)

    def tensor_map(self, matrix: Tensor, box_rows: int) -> np.ndarray:
        assert matrix.address % 16 == matrix.shape[1] * matrix.itemsize % 16 == 0
        assert 0 < box_rows <= 256
        return np.zeros(WORDS, np.int32)

    def write(self, target: Tensor, values: np.ndarray) -> None:
        assert values.size == target.size
        self.values[target.address] = values

    def read(self, source: Tensor) -> np.ndarray:
        held = self.values.get(source.address)
        if held is None or held.shape != source.shape:
            return np.asarray(from_device_type(np.zeros(source.shape, HOST[source.dtype]), source.dtype))
        return held.copy()

    def fetch(self, source: Tensor, into: np.ndarray) -> None:
        into[:] = self.read(source)

    def record(self, work: Any) -> Any:
        work()
        return PaperGraph()

    def wait_beside(self) -> None: ...
    @property
    def beside(self) -> Any:
        return PaperStream()

    @property
    def side(self) -> Any:
        return PaperSide()

    def send(self, target: Tensor, source: np.ndarray) -> None:
        assert source.nbytes <= target.nbytes

    def receive(self, source: Tensor, into: np.ndarray) -> None:
        assert source.nbytes == into.nbytes

    def allow_large_clusters(self, kernel: Kernel) -> None: ...
    def clear(self, target: Tensor) -> None: ...
    def wait(self) -> None: ...
    def forbid_allocation(self) -> None: ...
    def versions(self) -> dict[str, str]:
        return {}


class PaperSide:
    @property
    def stream(self) -> Any:
        return PaperStream()

    def fork(self) -> None: ...
    def barrier(self) -> None: ...
    def join(self) -> None: ...


class PaperGraph:
    def launch(self, stream: Any) -> None: ...


class PaperStream:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class PaperLibrary:
    """cuBLASLt's place: checks that sizes agree and that nothing reaches past a tensor."""

    version, identity = 0, "paper"

    def __init__(self, device: Any, precision: str, workspace: Tensor) -> None:
        self.algorithms: dict[str, str] = {}

    def restore(self, identity: str, algorithms: dict[str, str]) -> bool:
        return True

    def save(self) -> None: ...

    def product(
        self, out: Any, a: Any, b: Any, add: Any = None, batch: int = 1, *, side: bool = False, name: str = ""
    ) -> Any:
        m, k = (a.columns, a.rows) if a.transposed else (a.rows, a.columns)
        depth, n = (b.columns, b.rows) if b.transposed else (b.rows, b.columns)
        assert (k, out.rows, out.columns) == (depth, m, n)
        if a.scale or b.scale:  # FP8 products exist in one form only
            assert (a.tensor.dtype, b.tensor.dtype, out.tensor.dtype) == ("float8_e4m3", "float8_e4m3", "bfloat16")
            assert a.scale and b.scale and name
            assert b.transposed and not a.transposed
            assert out.columns % 16 == a.columns % 16 == 0
        for operand in (out, a, b):
            last = (batch - 1) * operand.step + (operand.rows - 1) * operand.stride + operand.columns
            assert last <= operand.tensor.size, operand
            assert operand.columns <= operand.stride, operand
        return lambda: None


def on_paper(monkeypatch: pytest.MonkeyPatch) -> PaperDevice:
    """The device and the library that the next engine gets."""
    device = PaperDevice()
    device.stream = PaperStream()  # type: ignore[assignment]
    monkeypatch.setattr(engine_module, "Device", lambda: device)
    monkeypatch.setattr(engine_module, "CublasLt", PaperLibrary)
    return device


def built(experiment: Experiment, monkeypatch: pytest.MonkeyPatch, *, plain: bool) -> tuple[Any, PaperDevice]:
    device = on_paper(monkeypatch)
    engine = engine_module.CudaEngine(experiment.shape, experiment.train, plain=plain)
    vectors = [np.zeros(count(experiment.shape), np.float32)] * 3
    engine.load(*vectors, 0)
    return engine, device


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_every_launch_fits_its_signature(
    path: Path, plain: bool, microbatches: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes come from the shipped experiments, also with an untied head and with microbatches."""
    experiment = load(path)
    train = dataclasses.replace(experiment.train, microbatches=microbatches)
    model = dataclasses.replace(experiment.model, tied_head=tied)
    experiment = dataclasses.replace(experiment, train=train, model=model)
    engine, device = built(experiment, monkeypatch, plain=plain)
    layers, seen = experiment.shape.n_layers, device.launches
    norms = seen["k_layernorm_bwd"] + seen["k_fp8_layernorm_bwd"]
    assert norms == 2 * microbatches * (2 * layers + 1)  # once to load the code, once to capture
    assert seen["k_adamw"] == 2
    shape = experiment.shape
    batch = np.zeros((3, train.batch_size, shape.context + 1), np.int32)
    engine.run(batch, np.full(3, 1e-3))
    engine.evaluate(batch[0][:5])
    engine.generate([[1, 2], [3], [4], [5], [6]], 3, Choice(1.0, 3), seed=1, step=1)


def test_fp8_casts_are_one_for_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product without its cast reads what another left. Three forward and three backward a layer, three to evaluate."""
    experiment = load(Path("experiments/ANDREA-12M-FP8-TRAIN.json"))
    engine, device = built(experiment, monkeypatch, plain=True)
    layers, seen = experiment.shape.n_layers, device.launches
    forward = [seen[name] for name in ("k_fp8_layernorm_fwd", "k_fp8_gelu_fwd")]
    backward = [seen[name] for name in ("k_fp8_layernorm_bwd", "k_fp8_gelu_bwd", "k_fp8_cast")]
    assert forward == [2 * 2 * 2 * layers, 2 * 2 * layers]
    assert backward == [2 * layers] * 3
    assert seen["k_fp8_linear"] == sum(forward) + sum(backward)
    assert seen["k_gelu_fwd"] == seen["k_gelu_bwd"] == 0
    assert seen["k_fp8_scales"] == 2
    assert seen["k_fp8_cast_weights"] == 3  # the last after the load
    assert "fp8" in engine.state()


def test_fp8_goes_on_with_the_restored_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step after a resume must scale as it would have without the stop; building runs a step of its own."""
    experiment = load(Path("experiments/ANDREA-12M-FP8-TRAIN.json"))
    first, _ = built(experiment, monkeypatch, plain=False)
    device = on_paper(monkeypatch)
    engine = engine_module.CudaEngine(experiment.shape, experiment.train)
    history = np.random.default_rng(1).random((36, 16), np.float32)
    with pytest.raises(CheckpointError, match="FP8"):
        engine.restore({**first.state(), "fp8": None})
    engine.restore({**first.state(), "fp8": fp8.to_state(history)})
    engine.load(*[np.zeros(count(experiment.shape), np.float32)] * 3, 0)
    assert engine.state()["fp8"] == fp8.to_state(history)
    scales = device.values[engine._buffers["fp8_scales"].address]
    assert np.array_equal(scales, fp8.scales(history, fp8.first_largest(experiment.shape, 8)))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
def test_fp8_needs_a_card_that_has_it(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt would only say that it knows no algorithm."""
    experiment = load(Path("experiments/ANDREA-12M-FP8-TRAIN.json"))
    device = on_paper(monkeypatch)
    device.capability = capability
    with pytest.raises(EngineError, match=r"compute capability 8\.9"):
        engine_module.CudaEngine(experiment.shape, experiment.train)


def test_a_model_in_use_fits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """chat, sample and eval go through the same gate, with a batch of their own, past the end of the context as well."""
    device = on_paper(monkeypatch)
    shape = load(Path("experiments/ANDREA-12M-TRAIN.json")).shape
    engine = CudaInference(shape, "bf16")
    engine.take(np.zeros(count(shape), np.float32))
    assert len(list(engine.stream([1, 2], shape.context + 10, Choice(1.0, 3, 0.9), 1, 0))) == shape.context + 10
    assert engine.losses(np.zeros((5, shape.context + 1), np.int32)).shape == (5, shape.context)
    assert "engine cuda: bf16" in engine.describe() and "train.engine" not in engine.describe()
    engine._sampler._configure(Choice(0.5, 3, 0.75))
    words = device.values[engine._buffers["sampling"].address]
    assert words.view(np.float32)[[1, 3]].tolist() == [0.5, 0.75] and words[2] == 3


def test_a_model_trained_in_fp8_is_used_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run's history every tensor had the scale of a first step for ever, and older cards refused such a model."""
    device = on_paper(monkeypatch)
    device.capability = (8, 0)
    shape = load(Path("experiments/ANDREA-12M-FP8-TRAIN.json")).shape
    engine = CudaInference(shape, "fp8")
    engine.take(np.zeros(count(shape), np.float32))
    assert engine.losses(np.zeros((1, shape.context + 1), np.int32)).shape == (1, shape.context)
    assert "engine cuda: bf16" in engine.describe() and "fp8's scales stay with the run" in engine.describe()
    assert not any("fp8" in name for name in device.launches)


def test_a_foreign_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """State files are data from outside: a wrong one must not become a loss scale or an algorithm."""
    experiment = load(Path("experiments/ANDREA-120M-TRAIN.json"))
    on_paper(monkeypatch)
    engine = engine_module.CudaEngine(experiment.shape, experiment.train)
    good = engine.state()
    assert good["loss_scale"] == 65536.0
    wrong = ({"loss_scale": float("nan")}, {"loss_scale": 0.5}, {"counters": [1, -1, 0]}, {"counters": None})
    wrong += ({"counters": [float("inf"), 0, 0]}, {"counters": [2**31, 0, 0]}, {"loss_scale": float("inf")})
    for change in (
        *wrong,
        {"algorithms": {"x": "zz"}},
        {"algorithms": {"x": "00"}},
        {"identity": None, "counters": [1]},
    ):
        with pytest.raises(CheckpointError, match="the CUDA engine's state"):
            engine.restore({**good, **change})
    with pytest.raises(CheckpointError, match="the CUDA engine's state"):
        engine.restore({})  # no engine but this one resumes the run, and a fresh loss scale would change its bits
    engine.restore({**good, "loss_scale": 128.0, "counters": [3, 0, 2]})
    assert engine.state()["loss_scale"] == 128.0
    assert engine.skipped == 2


@pytest.mark.parametrize("change", [{"d_model": 4224, "n_heads": 66, "n_layers": 1}, {"context": 40000}])
def test_what_no_kernel_can_hold_is_refused(change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated, and by the setting's name."""
    experiment = load(Path("experiments/ANDREA-12M-TRAIN.json"))
    monkeypatch.setattr(engine_module, "Device", PaperDevice)
    with pytest.raises(EngineError, match=f"model.{next(iter(change))} must be at most"):
        engine_module.CudaEngine(dataclasses.replace(experiment.shape, **change), experiment.train)


def test_too_many_parameters_are_refused() -> None:
    """Offsets are 32 bits wide on the card; a plan that wraps around would be believed."""
    shape = dataclasses.replace(load(Path("experiments/ANDREA-12M-TRAIN.json")).shape, d_model=8192, n_heads=64)
    with pytest.raises(EngineError, match="32 bits"):
        list(cuda_buffers(shape, 1, "bf16"))


def test_positions_are_sorted_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tokens keep their order: it is the order in which their gradients are added."""
    experiment = load(Path("experiments/ANDREA-12M-TRAIN.json"))
    engine, _ = built(experiment, monkeypatch, plain=False)
    shape, rows = experiment.shape, experiment.train.batch_size
    batch = np.random.default_rng(0).integers(0, shape.vocab_size, (rows, shape.context + 1)).astype(np.int32)
    engine._feed.send(0, batch, 1e-3, 1)
    words, n, v = engine._feed._slots[0], rows * shape.context, shape.vocab_size
    order = words[4 + batch.size : 4 + batch.size + n]
    first = words[4 + batch.size + n : 4 + batch.size + n + v + 1]
    ids = batch[:, :-1].reshape(-1)
    assert np.array_equal(order, np.argsort(ids, kind="stable"))
    assert first[0] == 0
    assert first[-1] == n
    for token in (0, 7, v - 1):
        assert (ids[order[first[token] : first[token + 1]]] == token).all()
    assert np.allclose(words[:3].view(np.float32), [1e-3, 1 / 0.1, 1 / 0.001], rtol=1e-6)
