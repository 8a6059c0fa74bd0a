"""The learning rate."""

import pytest
from engine_cases import settings

from andrea.schedule import lr, lrs

SPEC = settings(lr=2.0, min_lr_ratio=0.1, warmup_steps=10, horizon=100, steps=50)


def test_values() -> None:
    """Guards lr(t) = cosine(t) * min(1, (t + 1) / warmup): first, end of warm-up, middle, horizon, beyond."""
    assert lr(0, SPEC) == pytest.approx(2.0 / 10)
    assert lr(9, SPEC) == pytest.approx(2.0, rel=0.02)
    assert lr(50, SPEC) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert lr(100, SPEC) == pytest.approx(0.2)
    assert lr(10_000, SPEC) == lr(100, SPEC)


def test_shape() -> None:
    """Guards a warm-up that overshoots: the rate rises to the end of the warm-up and then only falls."""
    rates = lrs(0, 101, SPEC)
    assert (rates[1:10] > rates[:9]).all()
    assert (rates[11:] < rates[10:-1]).all()
    assert rates.max() <= SPEC.lr


def test_steps_do_not_matter() -> None:
    """Guards a run that is made longer later: its first steps are what they would have been."""
    longer = settings(lr=2.0, min_lr_ratio=0.1, warmup_steps=10, horizon=100, steps=5000)
    assert lrs(0, 60, SPEC).tolist() == lrs(0, 60, longer).tolist()
    assert lrs(20, 10, SPEC).tolist() == lrs(0, 60, SPEC)[20:30].tolist()


def test_no_warmup() -> None:
    """Guards the division by zero."""
    assert lr(0, settings(lr=2.0, warmup_steps=0)) == 2.0
