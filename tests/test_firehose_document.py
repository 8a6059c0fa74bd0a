"""docs/FIREHOSE-BANDIT.md is the specification: its worked example and constants are computed here."""

from pathlib import Path

import numpy as np
import pytest
from bandit_kit import LEARNING, Packed, recipe

from andrea.bandit import Bandit
from andrea.rewards import Gains

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "FIREHOSE-BANDIT.md").read_text(encoding="utf-8")
ARMS = {"dialogue": (1000, 60, 0.40), "tales": (4000, 30, 1.20), "tiny": (40, 25, 2.00)}  # documents, pulls, reward


def worked_example() -> Bandit:
    counts = {name: documents for name, (documents, _, _) in ARMS.items()}
    spec = recipe(
        counts,
        focus_sources=(1, 1),
        floors={"dialogue": 0.8, "tales": 0.0, "tiny": 0.0},
        caps=dict.fromkeys(counts, 1.0),
    )
    bandit = Bandit(spec, 1, Packed(counts))
    for name, (documents, pulls, reward) in ARMS.items():
        arm = bandit.arms[name]
        arm.pulls, arm.signal.reward = pulls, reward
        rows = np.arange(min(documents, pulls * 8))
        bandit.coverage.add(np.full(len(rows), bandit.names.index(name)), rows)
    return bandit


def test_the_worked_example() -> None:
    """A reader checks his understanding against these tables."""
    bandit = worked_example()
    rank = bandit.rank(50, 100)
    for i, (name, (documents, pulls, reward)) in enumerate(ARMS.items()):
        epochs, cover = pulls * 8 / documents, bandit.coverage.shares()[i]
        explore = np.sqrt(np.log(115) / pulls)
        assert (
            f"| {name} | {pulls} | {epochs:.2f} | {cover:.0%} | {reward:.2f} | {explore:.3f} | {rank.index[i]:.3f} "
            f"| {rank.bonus[i]:.3f} | {rank.penalty[i]:.3f} |" in DOCUMENT
        )
        tentative = (1 if rank.focus[i] else 0.1) * rank.bonus[i] * rank.penalty[i]
        focus, floor = ("yes" if rank.focus[i] else "no"), bandit.spec.floors[name]
        assert (
            f"| {name} | {focus} | {tentative:.3f} | {floor} | 1.0 | {rank.weight[i]:.3f} "
            f"| {rank.probability[i]:.3f} |" in DOCUMENT
        )
    assert (20 * rank.probability).astype(int).tolist() == [8, 11, 0]


def test_the_stated_constants() -> None:
    """gain() settles at the value that the text builds on, and does what it says to plain noise."""
    gains = Gains(LEARNING)
    assert "settle at 0.198 and 90 for alpha 0.1, slow_alpha 0.01" in DOCUMENT
    assert gains.noise(10**6) == pytest.approx(0.198, abs=5e-4)
    assert gains.lag(10**6) == pytest.approx(90, abs=1e-6)
    noise = np.random.default_rng(1).standard_normal((4000, 60))
    for losses, expected in ((noise, gains.noise(60)), (-np.arange(60.0)[None], gains.lag(60))):
        fast = slow = losses[:, 0]
        for n in range(2, 61):
            fast = fast + 0.1 * (losses[:, n - 1] - fast)
            slow = slow + max(0.01, 1 / n) * (losses[:, n - 1] - slow)
        found = np.std(slow - fast) if len(losses) > 1 else (slow - fast)[0]
        assert float(found) == pytest.approx(expected, rel=0.05)
