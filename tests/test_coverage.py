"""Document sets as bits: equal to Python's sets, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.coverage import Coverage


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.data())
def test_bits_equal_sets(sizes: list[int], data: st.DataObject) -> None:
    """A bit counted twice, or one that spills into the next arm, would shift the bonus for good."""
    coverage, sets = Coverage(sizes), [set() for _ in sizes]
    for _ in range(3):
        pairs = data.draw(
            st.lists(
                st.integers(0, len(sizes) - 1).flatmap(lambda a: st.tuples(st.just(a), st.integers(0, sizes[a] - 1)))
            )
        )
        arms, numbers = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
        coverage.add(arms, numbers)
        for arm, number in pairs:
            sets[arm].add(number)
        assert coverage.seen.tolist() == [len(one) for one in sets]
    again = Coverage(sizes)
    for arm in range(len(sizes)):
        again.set_text(arm, coverage.to_text(arm), "x")
    assert again.seen.tolist() == coverage.seen.tolist()
    assert [again.to_text(arm) for arm in range(len(sizes))] == [coverage.to_text(arm) for arm in range(len(sizes))]
    assert coverage.shares().tolist() == [len(one) / size for one, size in zip(sets, sizes, strict=True)]


def test_a_document_that_is_none_is_a_defect() -> None:
    """Beyond the end it would mark the padding, and the state would be refused at the next start."""
    with pytest.raises(AssertionError, match="out of range"):
        Coverage([9, 9]).add(np.array([0]), np.array([9]))
