"""train.recompute on the card: less memory, and the same bits in everything that a run keeps."""

import dataclasses

import numpy as np
import pytest
from test_engine import PRECISIONS, SHAPE, opened, rates, same, state, tokens

from andrea.engine import Choice
from andrea.engine.cuda.engine import CudaEngine
from andrea.experiment import Shape

DEEP = dataclasses.replace(SHAPE, n_layers=5)
REAL = Shape(vocab_size=2305, d_model=384, n_heads=12, n_layers=6, context=1024, tied_head=True)  # ANDREA-12M


def pair(precision: str, shape: Shape, **changes) -> tuple[CudaEngine, CudaEngine]:
    """Without and with recomputation."""
    kept, again = (opened(precision, shape, recompute=r, **changes) for r in (False, True))
    assert kept.state()["algorithms"] == again.state()["algorithms"]
    return kept, again


def assert_same_run(kept: CudaEngine, again: CudaEngine, batches: np.ndarray) -> None:
    a, b = kept.run(batches, rates(len(batches))), again.run(batches, rates(len(batches)))
    assert np.isfinite(a[0]).all()
    assert np.array_equal(a[0], b[0]), "losses differ"
    assert np.array_equal(a[1], b[1]), "norms differ"
    assert np.array_equal(kept.gradient(), again.gradient()), "gradients of the last step differ"
    assert same(kept.snapshot(), again.snapshot())
    assert kept.state() == again.state()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("microbatches", [1, 2, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_bits(precision: str, microbatches: int, tied: bool) -> None:
    """Losses, norms, weights, m and v after 70 steps, which pass the end of the losses' buffer."""
    shape = dataclasses.replace(DEEP, tied_head=tied)
    assert_same_run(*pair(precision, shape, microbatches=microbatches), tokens(70, 8, shape))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_few_layers(layers: int, precision: str) -> None:
    """With one nothing is made again, with two nothing takes turns twice."""
    shape = dataclasses.replace(SHAPE, n_layers=layers)
    assert_same_run(*pair(precision, shape), tokens(10, 8, shape))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_same_bits_at_full_size(precision: str, microbatches: int) -> None:
    """ANDREA-12M at 8 x 1024, where weight gradients on the side really are still at work when their layer is left."""
    kept, again = pair(precision, REAL, microbatches=microbatches)
    assert again.plan().total < kept.plan().total * 0.85
    assert_same_run(kept, again, tokens(10, 8, REAL))


def test_the_same_bits_every_time() -> None:
    """A race between recomputation and the side stream shows as another result sooner or later."""
    engine, batches = opened("bf16", REAL, recompute=True), tokens(5, 8, REAL)
    results = []
    for _ in range(10):
        engine.load(*state(REAL))
        engine.run(batches, rates(5))
        results.append(engine.snapshot())
    assert all(same(results[0], other) for other in results[1:])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("microbatches", [1, 4, 8])
def test_evaluation_and_samples(precision: str, microbatches: int) -> None:
    """The same nats, and the same texts from a cache in the layers' outputs, also with one row at a time and past the context."""
    kept, again = pair(precision, DEEP, microbatches=microbatches)
    for engine in (kept, again):
        engine.run(tokens(10, 8), rates(10))
    blocks = tokens(1, 13, DEEP, seed=1)[0]
    assert np.array_equal(kept.evaluate(blocks), again.evaluate(blocks))
    asked = ([[1, 2], [3], list(range(70)), [7], [8, 9]], 100, Choice(0.9, 5), 3, 10)
    assert kept.generate(*asked) == again.generate(*asked)
    assert_same_run(kept, again, tokens(5, 8, seed=2))


def test_nothing_is_allocated_after_the_start() -> None:
    """As without."""
    engine = opened("bf16", DEEP, recompute=True)
    engine.run(tokens(3, 8), rates(3))
    before = engine._device.free_bytes
    engine.run(tokens(70, 8), rates(70))
    engine.evaluate(tokens(1, 9)[0])
    engine.generate([[1]], 100, Choice(1.0, 5), seed=1, step=1)
    assert engine._device.free_bytes == before
