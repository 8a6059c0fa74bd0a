"""Text generation with a cache against the whole forward pass."""

import numpy as np
import pytest
from engine_cases import SHAPE, UNTIED, engine

from andrea.engine.cpu import CpuEngine
from andrea.engine.generate import choose
from andrea.engine.interface import Choice
from andrea.errors import EngineError
from andrea.experiment import Shape

ROOMY = Shape(vocab_size=19, d_model=12, n_heads=3, n_layers=2, context=40, tied_head=True)


def next_logits(made: CpuEngine, text: list[int]) -> np.ndarray:
    """Logits after `text`, by the loss of every possible next token: -loss is the logit up to a constant."""
    shape, nats = made._shape, []
    for token in range(shape.vocab_size):
        block = np.zeros((1, shape.context + 1), np.int32)
        block[0, : len(text) + 1] = [*text, token]
        program = made._programs[0](1)
        made._forward(program, block)
        nats.append(program.losses[len(text) - 1])
    return -np.array(nats)


@pytest.mark.parametrize("shape", [SHAPE, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("prompt", [[3], [3, 1, 4, 1]])
def test_greedy_is_the_argmax_of_the_forward_pass(shape: Shape, prompt: list[int]) -> None:
    """Guards the cache: each token is the likeliest one after everything before it."""
    made = engine(shape)
    room = shape.context - len(prompt)
    found = made.generate([prompt], room, Choice(0.0, 0), seed=1, step=0)[0]
    text = list(prompt)
    for token in found:
        logits = next_logits(made, text)
        assert logits[token] >= logits.max() - 1e-5
        text.append(token)


def test_beyond_the_context() -> None:
    """Guards the rule for a full context: the last half stays, and text goes on as if it had been the prompt."""
    made = engine(ROOMY)
    long = made.generate([[5, 6]], 60, Choice(0.0, 0), seed=1, step=0)[0]
    assert len(long) == 60
    text = [5, 6, *long]
    kept = text[21:41]  # token 40 comes from a full context; for the next one the last 20 tokens are run again
    assert made.generate([kept], 20, Choice(0.0, 0), seed=1, step=0)[0] == text[41:61]


def test_streams_by_prompt_and_step() -> None:
    """Guards the random numbers: they belong to (seed, step, prompt index), not to what was generated before."""
    made = engine()
    choice = Choice(1.3, 0)
    together = made.generate([[1], [2], [1]], 6, choice, seed=1, step=5)
    assert together == made.generate([[1], [2], [1]], 6, choice, seed=1, step=5)
    assert together[:2] == made.generate([[1], [2]], 6, choice, seed=1, step=5)
    assert together[0] != together[2]
    assert together != made.generate([[1], [2], [1]], 6, choice, seed=1, step=6)


def test_choose() -> None:
    """Guards temperature and top_k: the cut keeps exactly k, ties go to the lowest id, shares follow the softmax."""
    rng = np.random.default_rng(0)
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    assert choose(logits, Choice(0.0, 0), rng) == 1
    assert choose(np.zeros(5, np.float32), Choice(0.0, 0), rng) == 0
    assert {choose(logits, Choice(1.0, 2), rng) for _ in range(200)} == {1, 3}
    assert {choose(np.zeros(5, np.float32), Choice(1.0, 2), rng) for _ in range(200)} == {0, 1}
    assert {choose(logits, Choice(1.0, 1), rng) for _ in range(50)} == {1}
    shares = np.bincount([choose(logits, Choice(1.0, 0), rng) for _ in range(20_000)], minlength=4) / 20_000
    assert np.allclose(shares, [0.1, 0.4, 0.2, 0.3], atol=0.015)
    flatter = np.bincount([choose(logits, Choice(2.0, 0), rng) for _ in range(20_000)], minlength=4) / 20_000
    assert np.allclose(flatter, np.sqrt([0.1, 0.4, 0.2, 0.3]) / np.sqrt([0.1, 0.4, 0.2, 0.3]).sum(), atol=0.015)


def drawn(logits: np.ndarray, choice: Choice) -> set[int]:
    """The tokens that 300 draws give."""
    rng = np.random.default_rng(0)
    return {choose(logits, choice, rng) for _ in range(300)}


def test_top_p() -> None:
    """Guards the nucleus: the fewest tokens that reach p, of what temperature and top_k have left; equals stay together."""
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    assert drawn(logits, Choice(1.0, 0, 0.39)) == {1}
    assert drawn(logits, Choice(1.0, 0, 0.41)) == drawn(logits, Choice(1.0, 0, 0.69)) == {1, 3}
    assert drawn(logits, Choice(1.0, 0, 0.95)) == {0, 1, 2, 3}
    assert drawn(logits, Choice(1.0, 2, 0.6)) == {1, 3}  # 0.4 of the 0.7 that two have is less than 0.6
    assert drawn(logits, Choice(0.1, 0, 0.9)) == {1}  # 0.94 of a sharper distribution
    assert drawn(np.zeros(4, np.float32), Choice(1.0, 0, 0.1)) == {0, 1, 2, 3}
    assert drawn(logits, Choice(1.0, 0, 1e-300)) == {1}


def test_top_p_of_one_changes_no_bit() -> None:
    """Guards runs under way: their samples were drawn before top_p was there."""
    logits = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    for top_k in (0, 40):
        scaled = logits.astype(np.float64) / 0.8
        if top_k:
            scaled[np.argsort(-scaled, kind="stable")[top_k:]] = -np.inf
        edges = np.cumsum(np.exp(scaled - scaled.max()))
        rng, other = np.random.default_rng(2), np.random.default_rng(2)
        for _ in range(200):
            want = int(np.searchsorted(edges, other.random() * edges[-1], side="right"))
            assert choose(logits, Choice(0.8, top_k), rng) == want


def test_one_random_number_a_token() -> None:
    """Guards the stream's place: top_k and temperature do not change how many numbers a token takes."""
    logits = np.arange(6, dtype=np.float32)
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.5, 2, 1.0), (5.0, 6, 0.5)):
        rng, other = np.random.default_rng(3), np.random.default_rng(3)
        choose(logits, Choice(temperature, top_k, top_p), rng)
        other.random()
        assert rng.random() == other.random()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "1 to 6 tokens"), ([0] * 7, "1 to 6 tokens"), ([19], "must lie in 0..18"), ([-1], "must lie in 0..18")],
    ids=["empty", "long", "high", "low"],
)
def test_bad_prompts(prompt: list[int], words: str) -> None:
    """Guards memory and the context's end."""
    with pytest.raises(EngineError, match=words):
        engine().generate([[1], prompt], 3, Choice(0.0, 0), seed=1, step=0)


@pytest.mark.parametrize(
    "choice", [Choice(-1.0, 0), Choice(float("nan"), 0), Choice(1.0, -1), Choice(1.0, 0, 0.0), Choice(1.0, 0, 1.1)]
)
def test_bad_settings(choice: Choice) -> None:
    """Guards against settings that mean nothing."""
    with pytest.raises(EngineError, match="tokens and top_k"):
        engine().generate([[1]], 3, choice, seed=1, step=0)
