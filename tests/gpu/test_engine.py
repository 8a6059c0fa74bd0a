"""The whole engine on the card: against the CPU engine, against itself, and against what must not happen."""

import dataclasses

import numpy as np
import pytest

from andrea.engine import Choice
from andrea.engine.cpu import CpuEngine
from andrea.engine.cuda.engine import CudaEngine
from andrea.engine.layout import count, initial_weights
from andrea.engine.reference import KERNELS
from andrea.errors import EngineError
from andrea.experiment import InitSpec, Shape, TrainSpec

SHAPE = Shape(vocab_size=101, d_model=64, n_heads=2, n_layers=2, context=77, tied_head=True)
INIT = InitSpec("normal", 0.05, 0.05, 0.08, 0.05, residual_scaling=True)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
GRADIENT_ERROR = {"fp32": 2e-6, "tf32": 3e-3, "bf16": 3e-2, "fp16": 5e-3}  # relative L2


def spec(precision: str = "fp32", **changes) -> TrainSpec:
    plain = TrainSpec("cuda", precision, 1, 8, 1, False, 100, 100, 1e-3, 0.1, 5, 0.9, 0.999, 1e-8, 0.1, 1.0, 2)
    return dataclasses.replace(plain, **changes)


def tokens(steps: int, rows: int, shape: Shape = SHAPE, seed: int = 0) -> np.ndarray:
    """Something that can be learned: each token follows from the one before, with noise."""
    rng = np.random.default_rng(seed)
    made = np.zeros((steps, rows, shape.context + 1), np.int32)
    made[..., 0] = rng.integers(0, shape.vocab_size, (steps, rows))
    for t in range(1, shape.context + 1):
        noise = rng.integers(0, shape.vocab_size, (steps, rows))
        made[..., t] = np.where(rng.random((steps, rows)) < 0.2, noise, (made[..., t - 1] * 7 + 3) % shape.vocab_size)
    return made


def state(shape: Shape = SHAPE) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    weights = initial_weights(shape, INIT, 1)
    return weights, np.zeros_like(weights), np.zeros_like(weights), 0


def opened(precision: str = "fp32", shape: Shape = SHAPE, **changes) -> CudaEngine:
    plain = changes.pop("plain", False)
    engine = CudaEngine(shape, spec(precision, **changes), plain=plain)
    engine.load(*state(shape))
    return engine


def cpu(shape: Shape = SHAPE, dtype: str = "float64", **changes) -> CpuEngine:
    engine = CpuEngine(shape, spec(**changes), 2, KERNELS, dtype)
    weights, m, v, step = state(shape)
    engine.load(weights.astype(dtype), m.astype(dtype), v.astype(dtype), step)
    return engine


def rates(n: int) -> np.ndarray:
    return np.full(n, 1e-3)


def same(a, b) -> bool:
    return a.step == b.step and all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("weights", "m", "v"))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_one_step_agrees_with_float64(precision: str, tied: bool, plain: bool) -> None:
    """Every gradient of the model at once, by the engine's own graph: a wrong buffer or order shows here."""
    shape = dataclasses.replace(SHAPE, tied_head=tied)
    engine, reference, batch = opened(precision, shape, plain=plain), cpu(shape), tokens(1, 8, shape)
    losses, norms = engine.run(batch, rates(1))
    scale = engine.state()["loss_scale"] if precision == "fp16" else 1.0
    want_loss, want_norm = reference.run(batch, rates(1))
    reference.load(*(a.astype(np.float64) for a in state(shape)[:3]), 0)
    _, want = reference.gradient(batch[0])
    got = engine.gradient().astype(np.float64) / scale
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= GRADIENT_ERROR[precision], f"gradient off by {error}"
    assert losses[0] == pytest.approx(want_loss[0], rel=GRADIENT_ERROR[precision])
    assert norms[0] == pytest.approx(want_norm[0], rel=2 * GRADIENT_ERROR[precision])


def test_training_agrees_with_the_cpu_engine() -> None:
    """The same losses over 60 steps in fp32: optimizer, bias corrections and clipping included."""
    batches = tokens(60, 8)
    losses, norms = opened().run(batches, rates(60))
    want, want_norms = cpu().run(batches, rates(60))
    assert np.allclose(losses, want, rtol=1e-3), np.abs(losses / want - 1).max()
    assert losses[0] == pytest.approx(want[0], rel=1e-5)
    assert np.allclose(norms[:5], want_norms[:5], rtol=1e-3)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_microbatches_are_one_batch(precision: str) -> None:
    """Four microbatches of two rows against one of eight: mean of means, one norm, one update."""
    batches = tokens(10, 8)
    whole, cut = opened(precision), opened(precision, microbatches=4)
    a, b = whole.run(batches, rates(10)), cut.run(batches, rates(10))
    rtol = {"fp32": 1e-5, "tf32": 1e-3}.get(precision, 1e-2)
    assert np.allclose(a[0], b[0], rtol=rtol)
    assert np.allclose(a[1], b[1], rtol=10 * rtol)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cut", [1, 7, 66])
def test_resume_is_exact(precision: str, cut: int) -> None:
    """Stopped after `cut` steps, loaded into a new engine: the same bytes. 70 steps pass the end of the losses' buffer."""
    n = 70
    batches = tokens(n, 8)
    straight = opened(precision)
    losses, norms = straight.run(batches, rates(n))
    before = opened(precision)
    first = before.run(batches[:cut], rates(cut))
    snapshot, extra = before.snapshot(), before.state()
    after = CudaEngine(SHAPE, spec(precision))
    after.restore(extra)
    after.load(snapshot.weights, snapshot.m, snapshot.v, snapshot.step)
    second = after.run(batches[cut:], rates(n - cut))
    assert np.array_equal(np.concatenate([first[0], second[0]]), losses)
    assert np.array_equal(np.concatenate([first[1], second[1]]), norms)
    assert same(straight.snapshot(), after.snapshot())
    assert straight.state() == after.state()


def test_a_snapshot_takes_the_memory_of_an_earlier_one() -> None:
    """A copy that keeps old values would be a checkpoint of another step."""
    engine = opened("bf16")
    first = engine.snapshot()
    engine.run(tokens(2, 8), rates(2))
    again = engine.snapshot(first)
    assert again.weights is first.weights
    assert again.step == 2
    assert same(again, engine.snapshot())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_bits_every_time(precision: str) -> None:
    """A race or an unordered sum changes the last bits sooner or later."""
    engine, batches = opened(precision), tokens(5, 8)
    results = []
    for _ in range(20):
        if precision == "fp16":
            engine._control.view(np.float32)[0] = 65536.0
        engine.load(*state())
        engine.run(batches, rates(5))
        results.append(engine.snapshot())
    assert all(same(results[0], other) for other in results[1:])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_finite_freezes_the_window(precision: str) -> None:
    """A NaN weight makes a NaN loss: nothing is updated, and the step count stays."""
    engine = opened(precision)
    weights, m, v, _ = state()
    weights[5] = np.nan
    engine.load(weights, m, v, 3)
    losses, _ = engine.run(np.full_like(tokens(4, 8), 0), rates(4))
    after = engine.snapshot()
    assert np.isnan(losses).all()
    assert after.step == 3
    assert np.array_equal(after.weights, weights, equal_nan=True)
    assert not after.m.any()
    engine.load(*state())
    assert np.isfinite(engine.run(tokens(2, 8), rates(2))[0]).all()


def test_fp16_overflow_skips_and_recovers() -> None:
    """A loss scale far too large: steps without update, then training, with the scale where it stopped overflowing."""
    engine = CudaEngine(SHAPE, spec("fp16"))
    engine.restore({**engine.state(), "loss_scale": 2.0**24})
    engine.load(*state())
    losses, norms = engine.run(tokens(30, 8), rates(30))
    assert norms[0] == 0.0
    assert 0 < engine.skipped < 20
    assert np.isfinite(losses).all()
    assert engine.state()["loss_scale"] == 2.0 ** (24 - engine.skipped)
    assert norms[-1] > 0
    assert engine.snapshot().step == 30
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_evaluation(precision: str) -> None:
    """More blocks than rows, and a last part that is not full; the training state is untouched."""
    engine, blocks = opened(precision), tokens(1, 13)[0]
    before = engine.snapshot()
    nats, want = engine.evaluate(blocks), cpu().evaluate(blocks)
    assert np.allclose(nats, want, rtol={"fp32": 1e-6, "tf32": 1e-3}.get(precision, 5e-3))
    assert same(before, engine.snapshot())


def test_nothing_is_allocated_after_the_start() -> None:
    """Neither by us nor by a library: the card's free memory stays what it was."""
    import cupy

    engine = opened("bf16")
    engine.run(tokens(3, 8), rates(3))
    before = engine._device.free_bytes
    engine.run(tokens(70, 8), rates(70))
    engine.evaluate(tokens(1, 9)[0])
    engine.generate([[1]], 100, Choice(1.0, 5), seed=1, step=1)
    engine.snapshot()
    assert engine._device.free_bytes == before
    with pytest.raises(EngineError, match="nothing is allocated"):
        cupy.zeros(4)


def test_wrong_batches_are_refused_by_name() -> None:
    """Before the launch: on the card they would read foreign memory."""
    engine, batch = opened(), tokens(1, 8)
    batch[0, 0, 0] = SHAPE.vocab_size
    with pytest.raises(EngineError, match="tokens must lie in"):
        engine.run(batch, rates(1))
    with pytest.raises(EngineError, match="must be int32 of shape"):
        engine.run(tokens(1, 7), rates(1))
    with pytest.raises(EngineError, match="flat vector"):
        engine.load(*(np.zeros(count(SHAPE) - 1, np.float32) for _ in range(3)), 0)
