"""Window plans: lengths, shares, and dependence on nothing but seed and number."""

from collections import Counter

import pytest

from andrea.errors import CheckpointError
from andrea.experiment import FirehoseSpec
from andrea.firehose import FixedFirehose, Window


def firehose(seed: int = 1, weights: dict[str, float] | None = None) -> FixedFirehose:
    weights = weights or {"a": 0.7, "b": 0.3, "never": 0.0}
    return FixedFirehose(FirehoseSpec("fixed", weights, (7, 42)), seed, list(weights))


def test_lengths_fill_the_range_and_nothing_else() -> None:
    """An off-by-one at either end would change the published 7 to 42."""
    lengths = Counter(len(firehose().plan(number, 0).sources) for number in range(2000))
    assert set(lengths) == set(range(7, 43))
    assert max(lengths.values()) < 2.5 * min(lengths.values())


def test_shares_follow_the_weights_and_zero_is_never_drawn() -> None:
    """A search on the wrong side of a bound draws a source of weight 0."""
    drawn = Counter(source for number in range(1000) for source in firehose().plan(number, 0).sources)
    assert drawn["never"] == 0
    assert drawn["a"] / drawn.total() == pytest.approx(0.7, abs=0.01)


def test_a_plan_depends_on_seed_and_number_alone() -> None:
    """Hidden state would make a resumed run plan other windows."""
    one, other = firehose(), firehose()
    for number in range(5):
        one.plan(number, 0)
    assert one.plan(7, 100) == other.plan(7, 100)
    assert one.plan(7, 100).sources != firehose(seed=2).plan(7, 100).sources
    assert one.plan(7, 100).sources != one.plan(8, 100).sources


def test_the_order_of_the_weights_in_the_file_decides_nothing() -> None:
    """The fingerprint sorts keys; a plan that did not would differ under an equal fingerprint."""
    turned = firehose(weights={"never": 0.0, "b": 0.3, "a": 0.7})
    assert turned.plan(3, 0) == firehose().plan(3, 0)


def test_plans_do_not_change_unnoticed() -> None:
    """A change of the draw would break every run that is under way; then this test must be changed on purpose."""
    assert firehose().plan(0, 0) == Window(0, 0, tuple("abbaaabbaaaaababaabbaaababaaaa"))


def test_state_goes_back_and_foreign_state_is_refused() -> None:
    """The state of another policy must not be taken for ours."""
    fixed = firehose()
    fixed.restore(fixed.state())
    with pytest.raises(CheckpointError, match="fixed"):
        fixed.restore({"policy": "bandit"})
