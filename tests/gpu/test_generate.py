"""Sampling and models in use on the card: against the CPU engine, and against the distribution that is drawn from."""

import dataclasses

import numpy as np
import pytest
from test_engine import PRECISIONS, SHAPE, cpu, opened, rates, same, state, tokens

from andrea.engine import Choice
from andrea.engine.cuda.inference import CudaInference
from andrea.engine.inference import CpuInference
from andrea.engine.loops import KERNELS as LOOPS


def test_greedy_text_is_the_cpu_engines() -> None:
    """Also past the end of the context, where both go on from the last half."""
    batches = tokens(40, 8)
    engine, reference = opened(), cpu(dtype="float32")
    engine.run(batches, rates(40))
    reference.load(*dataclasses.astuple(engine.snapshot())[1:], 40)
    prompts = [[1], [5, 38, 67], list(range(76)), [9, 9], [100]]
    asked = (prompts, 200, Choice(0.0, 0), 1, 40)
    assert engine.generate(*asked) == reference.generate(*asked)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_samples_beside_an_evaluation(precision: str) -> None:
    """What a card writes while it validates is what it writes alone, and the validation is that without it."""
    engine, batches = opened(precision), tokens(3, 8)
    engine.run(batches, rates(3))
    choice, prompts = Choice(0.9, 5), [[1, 2], [3], [4, 5, 6]]
    texts, nats = engine.generate(prompts, 50, choice, seed=3, step=3), engine.evaluate(batches[0])
    finish = engine.begin_generate(prompts, 50, choice, seed=3, step=3)
    assert np.array_equal(engine.evaluate(batches[0]), nats)
    assert finish() == texts


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("choice", [Choice(0.0, 0), Choice(0.9, 5), Choice(1.0, 0, 0.8)])
def test_one_launch_writes_what_a_launch_a_kernel_writes(precision: str, choice: Choice) -> None:
    """Clusters against the plain kernels, with prompts of many lengths, past the end of the context, and again.

    Rounding may turn one pick; after it a text is another, so that only what comes before is compared.
    """
    prompts = [[1], [5, 38, 67], list(range(76)), [9, 9], [100]]
    texts = []
    for plain in (True, False):
        engine = opened(precision, plain=plain)
        weights, m, v, _ = state()
        engine.load(weights * 4, m, v, 0)
        texts.append(engine.generate(prompts, 200, choice, seed=3, step=5))
    assert texts[1] == engine.generate(prompts, 200, choice, seed=3, step=5)
    same = [
        next((i for i, pair in enumerate(zip(*two, strict=True)) if len(set(pair)) > 1), 200)
        for two in zip(*texts, strict=True)
    ]
    assert min(same) >= (200 if precision == "fp32" else 20), same
    assert sum(n == 200 for n in same) >= 4, same


@pytest.mark.parametrize("precision", PRECISIONS)
def test_samples(precision: str) -> None:
    """The same tokens every time, whoever else is sampled; top_k 1 is greedy; training goes on unharmed."""
    engine, batches = opened(precision), tokens(20, 8)
    engine.run(batches[:10], rates(10))
    choice, prompts = Choice(0.9, 5), [[1, 2], [3], [4, 5, 6], [7], [8, 9]]
    texts = engine.generate(prompts, 100, choice, seed=3, step=10)
    assert texts == engine.generate(prompts, 100, choice, seed=3, step=10)
    assert texts[:1] == engine.generate(prompts[:1], 100, choice, seed=3, step=10)
    assert texts != engine.generate(prompts, 100, choice, seed=4, step=10)
    assert [len(t) for t in texts] == [100] * 5
    greedy = engine.generate(prompts, 50, Choice(0.0, 0), seed=0, step=0)
    if precision == "fp32":  # 16-bit logits tie, and ties of the first are all kept
        assert greedy == engine.generate(prompts, 50, Choice(0.7, 1), seed=0, step=0)
    straight = opened(precision)
    straight.run(batches, rates(20))
    engine.run(batches[10:], rates(10))
    assert same(straight.snapshot(), engine.snapshot())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("choice", [Choice(0.0, 0), Choice(0.9, 5), Choice(1.0, 0, 0.8), Choice(0.9, 20, 0.5)])
def test_a_stream_is_what_is_generated_at_once(precision: str, choice: Choice) -> None:
    """Token by token, past the end of the context, also after a stream that was left in the middle."""
    engine = CudaInference(SHAPE, precision)
    engine.take(state()[0] * 4)
    want = engine.generate([[1, 2, 3]], 200, choice, seed=3, step=0)[0]
    next(engine.stream([7], 50, choice, 1, 0))
    assert list(engine.stream([1, 2, 3], 200, choice, 3, 0)) == want


def test_a_model_in_use_agrees_with_the_cpu_engine() -> None:
    """Greedy text, of weights that make clear choices, and the loss of every target, of weights that do not magnify roundings."""
    engine, reference = CudaInference(SHAPE, "fp32"), CpuInference(SHAPE, 1, LOOPS)
    for made in (engine, reference):
        made.take(state()[0] * 4)
    texts = [list(made.stream([1, 2], 150, Choice(0.0, 0), 1, 0)) for made in (engine, reference)]
    assert texts[0] == texts[1]
    for made in (engine, reference):
        made.take(state()[0])
    blocks = tokens(1, 7)[0]
    assert np.allclose(
        engine.losses(blocks), reference.losses(blocks), rtol=0, atol=2e-5
    )  # one ulp of all weights: 1.4e-6


@pytest.mark.parametrize("precision", PRECISIONS)
def test_top_p(precision: str) -> None:
    """Only tokens of the nucleus are drawn, and as often as they should; a very small p is greedy."""
    engine, reference = CudaInference(SHAPE, precision), CpuInference(SHAPE, 1, LOOPS)
    for made in (engine, reference):
        made.take(state()[0] * 4)
    p = np.exp(reference._generator._prefill([7]).astype(np.float64) / 8)
    order = np.argsort(-p)
    size = int(np.searchsorted(np.cumsum(p[order]), 0.5 * p.sum())) + 1
    assert 5 < size < 50
    drawn = np.array([t[0] for t in engine.generate([[7]] * 3000, 1, Choice(8.0, 0, 0.5), seed=1, step=0)])
    slack = 0 if precision == "fp32" else 6  # equal 16-bit logits stay together
    assert set(drawn.tolist()) <= set(order[: size + slack].tolist())
    want = np.zeros(SHAPE.vocab_size)
    want[order[:size]] = p[order[:size]] / p[order[:size]].sum()
    seen = np.bincount(drawn, minlength=SHAPE.vocab_size) / len(drawn)
    limit = 1.63 / np.sqrt(len(drawn)) + slack / 100
    assert np.abs(np.cumsum(seen) - np.cumsum(want)).max() < limit  # Kolmogorov, 1 %
    if precision == "fp32":
        greedy = engine.generate([[7]] * 4, 20, Choice(0.0, 0), seed=1, step=0)
        assert engine.generate([[7]] * 4, 20, Choice(8.0, 0, 1e-30), seed=1, step=0) == greedy


def test_drawing_follows_the_distribution() -> None:
    """2,000 first tokens against the softmax that the CPU engine computes."""
    engine = opened()
    weights, m, v, _ = state()
    engine.load(weights * 4, m, v, 0)  # sharper logits than a fresh model's
    drawn = np.array([t[0] for t in engine.generate([[7]] * 2000, 1, Choice(1.0, 0), seed=1, step=0)])
    block = np.full((1, SHAPE.context + 1), 7, np.int32)
    logits = []
    for target in range(SHAPE.vocab_size):
        block[0, 1] = target
        logits.append(block.copy())
    reference = cpu()
    reference.load(*(a.astype(np.float64) for a in (weights * 4, m, v)), 0)
    program = reference._programs[0](1)
    p = np.zeros(SHAPE.vocab_size)
    for target in range(SHAPE.vocab_size):
        reference._forward(program, logits[target])
        p[target] = np.exp(-program.losses[0])
    seen = np.bincount(drawn, minlength=SHAPE.vocab_size) / len(drawn)
    assert p.sum() == pytest.approx(1.0, rel=1e-6)
    assert np.abs(np.cumsum(seen) - np.cumsum(p)).max() < 1.63 / np.sqrt(len(drawn))  # Kolmogorov, 1 %
