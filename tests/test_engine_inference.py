"""The CPU engine for use against the one for training: the same numbers from a fraction of the memory."""

import numpy as np
import pytest
from engine_cases import SHAPE, UNTIED, engine, start_weights
from test_engine_generate import ROOMY

from andrea.engine import Choice
from andrea.engine.inference import CpuInference
from andrea.engine.loops import KERNELS
from andrea.errors import EngineError
from andrea.experiment import Shape


def inference(shape: Shape, threads: int = 1) -> CpuInference:
    made = CpuInference(shape, threads, KERNELS)
    made.take(start_weights(shape))
    return made


@pytest.mark.parametrize("shape", [SHAPE, UNTIED, ROOMY], ids=["tied", "untied", "roomy"])
@pytest.mark.parametrize("choice", [Choice(0.0, 0), Choice(1.2, 5), Choice(1.0, 0, 0.7)], ids=["greedy", "k", "p"])
def test_a_stream_is_what_training_samples(shape: Shape, choice: Choice) -> None:
    """The same bits, also past a full context: shared activations must not spill into the cache."""
    want = engine(shape).generate([[5, 6]], 70, choice, seed=1, step=3)[0]
    made = inference(shape)
    assert list(made.stream([5, 6], 70, choice, 1, 3)) == want
    made.losses(np.zeros((2, shape.context + 1), np.int32))
    assert list(made.stream([5, 6], 70, choice, 1, 3)) == want


@pytest.mark.parametrize("shape", [SHAPE, UNTIED], ids=["tied", "untied"])
def test_losses_are_those_of_training_target_by_target(shape: Shape) -> None:
    """Their sums are what validation measures, and threads do not change a bit."""
    blocks = np.random.default_rng(2).integers(0, shape.vocab_size, (5, shape.context + 1), dtype=np.int32)
    losses = inference(shape).losses(blocks)
    assert losses.shape == (5, shape.context)
    assert np.allclose(losses.sum(axis=1), engine(shape).evaluate(blocks), rtol=1e-6)
    assert np.array_equal(losses, inference(shape, threads=3).losses(blocks))
    changed = blocks.copy()
    changed[:, -1] = (changed[:, -1] + 1) % shape.vocab_size
    assert np.array_equal(losses[:, :-1], inference(shape).losses(changed)[:, :-1])


def test_nothing_of_training_is_held() -> None:
    """A model that a laptop can talk to must not ask for four times its weights."""
    shape = Shape(vocab_size=100, d_model=64, n_heads=4, n_layers=6, context=16, tied_head=True)
    made, training = CpuInference(shape, 1, KERNELS), engine(shape)
    assert {buffer.name for buffer in made.plan().buffers}.isdisjoint({"m", "v", "0.grad"})
    assert made.plan().total < training.plan().total / 3


def test_wrong_calls_are_refused() -> None:
    """Before foreign memory is read."""
    made = inference(SHAPE)
    with pytest.raises(EngineError, match="flat vector"):
        made.take(np.zeros(3, np.float32))
    with pytest.raises(EngineError, match="1 to 6 tokens"):
        made.stream([0] * 7, 3, Choice(0.0, 0), 1, 0)
    with pytest.raises(EngineError, match="tokens must lie in"):
        made.losses(np.full((1, SHAPE.context + 1), SHAPE.vocab_size, np.int32))
    with pytest.raises(EngineError, match="at least one thread"):
        CpuInference(SHAPE, 0, KERNELS)
