"""What a call of the engine leaves to be written, and where its good steps end."""

import math

import pytest

from andrea.training.steps import Steps


def steps(losses: list[float], norms: list[float]) -> Steps:
    names = ["a", "b", "a"][: len(losses)]
    return Steps(
        before=7, window=2, sources=names, losses=losses, norms=norms, rates=[0.1] * len(losses), seconds=0.002
    )


def test_a_record_for_each_step() -> None:
    """They are numbered from the step after the last one."""
    found = steps([3.0, 2.0, 1.0], [0.5, 0.0, 0.25])
    assert found.good == 3
    assert [(r["step"], r["source"], r["window"], r["ms"]) for r in found.records()] == [
        (8, "a", 2, 2.0),
        (9, "b", 2, 2.0),
        (10, "a", 2, 2.0),
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_good_ones_end_before_what_is_not_finite(bad: float) -> None:
    """Whether it is the loss or the norm: later steps were frozen, and must not be credited."""
    assert steps([3.0, bad, 1.0], [1.0, 1.0, 1.0]).good == 1
    assert steps([3.0, 2.0, 1.0], [bad, 1.0, 1.0]).good == 0
    assert steps([3.0, bad], [1.0, 1.0]).records()[1]["loss"] is None
