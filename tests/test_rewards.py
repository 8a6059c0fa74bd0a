"""Rewards: what learns is paid, what is only loud is not, and what is tiny is not memorised."""

import math

import numpy as np
import pytest
from bandit_kit import FALL, LEARNING, Packed, drive, recipe, shares
from hypothesis import given
from hypothesis import strategies as st

from andrea.bandit import Bandit
from andrea.recipe import RewardSpec
from andrea.rewards import Gains, Signal


def loud(name: str, _: int, noise: np.random.Generator) -> float:
    return 3.0 + (0.5 if name == "noise" else 0.01) * float(noise.standard_normal())


def test_noise_earns_nothing_under_our_reward_and_a_fortune_under_the_originals() -> None:
    """The original's first 120M run fed on repetitive sources whose mean rewards of 340 to 453 were mostly noise."""
    counts = dict.fromkeys(("noise", "flat", "also-flat", "flat-too"), 10**6)
    ours = shares(drive(Bandit(recipe(counts), 1, Packed(counts)), 300, loud))
    assert abs(ours["noise"] - 0.25) < 0.03
    fall = Bandit(recipe(counts, reward=FALL, exploration=100.0), 1, Packed(counts))
    theirs = shares(drive(fall, 300, loud))
    assert theirs["noise"] > 0.5
    assert fall.arms["noise"].signal.reward == pytest.approx(0.41 * 0.5 * 1000, rel=0.05)  # section 2 of the document


def test_what_can_be_learned_rises_and_falls_as_it_is_learned() -> None:
    """A curriculum follows progress; an arm that has been learned must give its place back."""

    def losses(name: str, pulls: int, noise: np.random.Generator) -> float:
        return 3.0 + 0.1 * float(noise.standard_normal()) + (2 * math.exp(-pulls / 800) if name == "fresh" else 0)

    counts = dict.fromkeys(("fresh", "known", "old", "stale"), 10**6)
    done = drive(Bandit(recipe(counts), 1, Packed(counts)), 600, losses)
    assert shares(done[20:150])["fresh"] > 0.4
    assert shares(done[-200:])["fresh"] < 0.3


@given(st.lists(st.floats(0, 20), min_size=1, max_size=120), st.sampled_from([LEARNING, FALL]))
def test_a_reward_is_never_negative_and_a_rise_never_pays(losses: list[float], spec: RewardSpec) -> None:
    """The slow average is at first the quicker one: a slope of the two would have the wrong sign there."""
    gains = Gains(spec)
    for values, pays in ((losses, True), (sorted(losses), False)):
        signal = Signal()
        for loss in values:
            signal.hear(loss, spec, gains)
            assert 0 <= signal.reward < math.inf
            assert pays or signal.reward <= 1e-6


def test_a_steady_fall_is_paid_its_slope() -> None:
    """`scale` times nats a pull, less the noise: the number that the document works with."""
    signal, gains, draws = Signal(), Gains(LEARNING), np.random.default_rng(1)
    for n in range(3000):
        signal.hear(9 - 0.002 * n + 0.1 * float(draws.standard_normal()), LEARNING, gains)
    detectable = 2.5 * 0.1 * 0.198 / 90
    assert signal.reward / LEARNING.scale == pytest.approx(0.002 - detectable, rel=0.15)


def test_a_tiny_source_is_not_memorised() -> None:
    """1,400 documents in 45,000 steps: drawn evenly they would be read 16 times over."""
    counts = {**{f"s{i:02}": 100_000 for i in range(15)}, "tiny": 1400}

    def memorised(name: str, pulls: int, noise: np.random.Generator) -> float:
        return 3.0 + 0.1 * float(noise.standard_normal()) - (pulls / 2000 if name == "tiny" else 0)

    bandit = Bandit(recipe(counts), 1, Packed(counts))
    done = drive(bandit, 1840, memorised)
    steps = sum(len(window.sources) for window in done)
    epochs = bandit.corpus.epochs("tiny", bandit.arms["tiny"].pulls)
    assert steps > 43_587
    assert epochs < 8
    assert bandit.coverage.shares()[bandit.names.index("tiny")] == 1
