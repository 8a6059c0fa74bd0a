"""The whole engine in precision fp8 on the card: against float64, against bf16, and against itself."""

import json

import numpy as np
import pytest
from card import Card
from test_engine import SHAPE, cpu, opened, rates, same, spec, state, tokens

from andrea.engine import Choice
from andrea.engine.cuda import fp8
from andrea.engine.cuda.engine import CudaEngine


@pytest.fixture(autouse=True)
def _require_card(card: Card) -> None:
    if card.device.capability < fp8.CAPABILITY:
        pytest.skip(f"FP8 needs compute capability 8.9, this card has {card.device.capability}")


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_step_agrees_with_float64(plain: bool, microbatches: int) -> None:
    """The first, whose scales are guesses, and the tenth: 3 bits of fraction in a part of the products."""
    engine, batches = opened("fp8", plain=plain, microbatches=microbatches), tokens(10, 8)
    for step in (0, 9):
        reference = cpu()
        before = engine.snapshot()
        reference.load(*(a.astype(np.float64) for a in (before.weights, before.m, before.v)), before.step)
        want_loss, want = reference.gradient(batches[step])
        losses, _ = engine.run(batches[step : step + 1], rates(1))
        got = engine.gradient().astype(np.float64) / microbatches
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error <= 0.12, f"gradient off by {error} at step {step}"
        assert losses[0] == pytest.approx(want_loss, rel=1e-2)
        if step == 0:
            engine.run(batches[1:9], rates(8))


def test_trains_as_bf16_does() -> None:
    """300 steps of the same batches: the loss within 2 %, all along after the first steps."""
    batches, curves = tokens(300, 8), {}
    for precision in ("bf16", "fp8"):
        curves[precision] = opened(precision).run(batches, rates(300))[0].reshape(10, 30).mean(axis=1)
    assert np.allclose(curves["fp8"], curves["bf16"], rtol=0.02), curves
    assert curves["fp8"][-1] < curves["fp8"][0] - 0.5


def test_the_same_bits_every_time() -> None:
    """A scale that depends on the order of blocks, or a cast that a product of another stream still reads."""
    batches, results = tokens(20, 8), []
    for _ in range(5):
        engine = opened("fp8")
        engine.run(batches, rates(20))
        results.append((engine.snapshot(), engine.state()))
    assert all(same(results[0][0], other) and results[0][1] == saved for other, saved in results[1:])


@pytest.mark.parametrize("cut", [1, 7, 66])
def test_resume_is_exact(cut: int) -> None:
    """Stopped, its state through JSON, loaded into a new engine that has evaluated and sampled: the same bytes."""
    n, batches = 70, tokens(70, 8)
    straight = opened("fp8")
    losses, norms = straight.run(batches, rates(n))
    before = opened("fp8")
    first = before.run(batches[:cut], rates(cut))
    snapshot, extra = before.snapshot(), json.loads(json.dumps(before.state()))
    after = CudaEngine(SHAPE, spec("fp8"))
    after.restore(extra)
    after.load(snapshot.weights, snapshot.m, snapshot.v, snapshot.step)
    assert after.state() == before.state()
    after.evaluate(tokens(1, 13)[0])
    after.generate([[1, 2], [3]], 100, Choice(1.0, 5), seed=1, step=1)
    assert after.state() == before.state()
    second = after.run(batches[cut:], rates(n - cut))
    assert np.array_equal(np.concatenate([first[0], second[0]]), losses)
    assert np.array_equal(np.concatenate([first[1], second[1]]), norms)
    assert same(straight.snapshot(), after.snapshot())
    assert straight.state() == after.state()


def test_evaluation_changes_nothing() -> None:
    """Blocks with far larger activations than training has seen must leave no trace in the scales."""
    batches, (quiet, disturbed) = tokens(12, 8), (opened("fp8"), opened("fp8"))
    blocks = np.random.default_rng(9).integers(0, SHAPE.vocab_size, (13, SHAPE.context + 1)).astype(np.int32)
    nats = []
    for step in range(12):
        for engine in (quiet, disturbed):
            engine.run(batches[step : step + 1], rates(1))
        nats = [disturbed.evaluate(blocks) for _ in range(2)]
        assert np.array_equal(*nats)
    assert same(quiet.snapshot(), disturbed.snapshot())
    assert quiet.state() == disturbed.state()
    reference = cpu()
    after = disturbed.snapshot()
    reference.load(*(a.astype(np.float64) for a in (after.weights, after.m, after.v)), after.step)
    assert np.allclose(nats[0], reference.evaluate(blocks), rtol=1e-2)


def test_what_is_not_finite_leaves_the_scales() -> None:
    """A NaN weight freezes the window; the histories must not hold what led to it, or the next good step is lost too."""
    engine, batches = opened("fp8"), tokens(8, 8)
    engine.run(batches, rates(8))
    good, saved = engine.snapshot(), engine.state()
    weights = good.weights.copy()
    weights[5] = np.nan
    engine.load(weights, good.m, good.v, good.step)
    losses, _ = engine.run(np.full_like(batches, 0), rates(8))
    assert np.isnan(losses).all()
    assert engine.state() == saved
    engine.load(good.weights, good.m, good.v, good.step)
    again = engine.run(batches, rates(8))[0]
    other = CudaEngine(SHAPE, spec("fp8"))
    other.restore(saved)
    other.load(good.weights, good.m, good.v, good.step)
    assert np.array_equal(again, other.run(batches, rates(8))[0])


def test_nothing_is_allocated_after_the_start() -> None:
    """FP8 algorithms may want memory of their own."""
    engine = CudaEngine(SHAPE, spec("fp8"))
    engine.load(*state())
    engine.run(tokens(3, 8), rates(3))
    before = engine._device.free_bytes
    engine.run(tokens(70, 8), rates(70))
    engine.evaluate(tokens(1, 9)[0])
    engine.state()
    assert engine._device.free_bytes == before
