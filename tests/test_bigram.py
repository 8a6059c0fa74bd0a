"""The bigram baseline: a proper distribution, close to the truth on data that has one, and never infinite."""

import math

import numpy as np
import pytest

from andrea.bigram import Bigram

V = 13


def chain(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n,) tokens of a random Markov chain, and its (V, V) transition matrix."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(V, 0.3), V)
    edges, tokens = chances.cumsum(axis=1), np.zeros(n, np.uint16)
    for i, draw in enumerate(rng.random(n - 1), 1):
        tokens[i] = min(np.searchsorted(edges[tokens[i - 1]], draw), V - 1)
    return tokens, chances


def test_chances_sum_to_one_for_every_previous_token() -> None:
    """A mixture that does not would give a baseline that is too good or too bad. Token 12 never comes first here."""
    tokens, _ = chain(3000)
    fitted = Bigram(np.where(tokens == 12, 3, tokens), V)
    blocks = np.array([[previous, following] for previous in range(V) for following in range(V)])
    sums = np.exp(-fitted.nats(blocks)).reshape(V, V).sum(axis=1)
    assert sums == pytest.approx(np.ones(V), abs=1e-9)


def test_it_finds_the_entropy_of_a_markov_chain() -> None:
    """With enough data the bigram is the truth, and its weight goes to the bigram part."""
    tokens, chances = chain(200_000)
    fitted = Bigram(tokens[:150_000], V)
    pairs = np.stack([tokens[150_000:-1], tokens[150_001:]], axis=1).astype(np.int64)
    truth = -np.log(chances[pairs[:, 0], pairs[:, 1]]).mean()
    blocks = tokens[150_000:199_999].reshape(1, -1)
    assert fitted.nats(blocks)[0] / (blocks.size - 1) == pytest.approx(truth, rel=0.01)
    assert fitted.weights[0] > 0.95


def test_it_beats_add_one_on_little_data() -> None:
    """The interpolation is what makes the baseline hard to beat when most pairs have never been seen."""
    tokens, _ = chain(100_000, seed=3)
    few, held, wide = tokens[:600], tokens[50_000:].reshape(10, -1), 20 * V
    counts = np.ones((wide, wide))
    np.add.at(counts, (few[:-1], few[1:]), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    add_one = -np.log(chances[held[:, :-1], held[:, 1:]]).sum()
    assert Bigram(few, wide).nats(held).sum() < 0.8 * add_one


@pytest.mark.parametrize("n", [2, 3, 25, 1000])
def test_few_tokens_and_unseen_pairs_stay_finite(n: int) -> None:
    """A source of one document must not end the run with an infinite baseline."""
    fitted = Bigram(np.zeros(n, np.uint16), 8449)
    assert np.isfinite(fitted.nats(np.array([[0, 8448, 5, 0, 0]]))).all()


def test_random_tokens_cost_log_v() -> None:
    """The unit is nats a token."""
    rng = np.random.default_rng(1)
    fitted = Bigram(rng.integers(0, 500, 200_000).astype(np.uint16), 500)
    blocks = rng.integers(0, 500, (20, 101))
    assert fitted.nats(blocks).sum() / 2000 == pytest.approx(math.log(500), rel=0.01)
