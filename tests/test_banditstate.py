"""The bandit's state: what no number may enter, and which states are refused."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from bandit_kit import Packed, drive, recipe

from andrea.bandit import Bandit
from andrea.errors import CheckpointError


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_counts_as_a_pull_and_teaches_nothing(bad: float) -> None:
    """One NaN in an average stays there for ever."""
    counts = dict.fromkeys(("a", "b"), 100)
    bandit, healthy = (Bandit(recipe(counts), 1, Packed(counts)) for _ in range(2))
    drive(bandit, 10), drive(healthy, 10)
    window = bandit.plan(10, 999)
    bandit.credit(window, [bad] * len(window.sources))
    for name, arm in bandit.arms.items():
        assert arm.signal == healthy.arms[name].signal
        assert arm.pulls == healthy.arms[name].pulls + window.sources.count(name)
    json.dumps(bandit.state(), allow_nan=False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.update(policy="fixed"), 'policy "bandit"'),
        (lambda s: s["arms"].pop("a"), "exactly the arms"),
        (lambda s: s.update(arms=3), "exactly the arms"),
        (lambda s: s["arms"].update(a=[]), "a JSON object"),
        (lambda s: s["arms"]["a"].pop("fast"), "exactly"),
        (lambda s: s["arms"]["a"].update(pulls=True), "whole numbers"),
        (lambda s: s["arms"]["a"].update(pulls=-1), "whole numbers"),
        (lambda s: s["arms"]["a"].update(fast=math.nan), "finite"),
        (lambda s: s["arms"]["a"].update(fast="3"), "finite"),
        (lambda s: s["arms"]["a"].update(losses=10**6), "no more losses than pulls"),
        (lambda s: s["arms"]["a"].update(documents=99), "100 documents"),
        (lambda s: s["arms"]["a"].update(seen="%%"), "base64"),
        (lambda s: s["arms"]["a"].update(seen="AAAA"), "100 bits"),
        (lambda s: s["arms"]["a"].update(seen="/" * 17 + "w=="), "100 bits"),
    ],
)
def test_a_foreign_or_damaged_state_is_refused(change: Callable[[dict[str, Any]], object], told: str) -> None:
    """A state of other arms would be mixed into this run without a sound."""
    counts = dict.fromkeys(("a", "b"), 100)
    bandit = Bandit(recipe(counts), 1, Packed(counts))
    drive(bandit, 5)
    state = json.loads(json.dumps(bandit.state()))
    change(state)
    with pytest.raises(CheckpointError, match=told):
        bandit.restore(state)
