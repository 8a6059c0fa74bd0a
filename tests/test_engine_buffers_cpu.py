"""The cut of a microbatch into partitions and groups."""

import pytest
from engine_cases import SHAPE

from andrea.engine.buffers_cpu import GROUP_TOKENS, cpu_buffers, cut_rows


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("partitions", [1, 2, 3, 8])
def test_every_row_once(rows: int, partitions: int) -> None:
    """Guards rows that no partition trains on, or two; and partitions that the experiment asks for and nobody gets."""
    cut = cut_rows(rows, partitions, context=256)
    assert [r for start, stop in cut.spans for r in range(start, stop)] == list(range(rows))
    assert cut.partitions == len(cut.spans) == min(rows, partitions)
    sizes = [stop - start for start, stop in cut.spans]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("context", "group"), [(GROUP_TOKENS, 1), (GROUP_TOKENS * 4, 1), (GROUP_TOKENS // 2, 2), (1, 16)]
)
def test_groups(context: int, group: int) -> None:
    """Guards memory: a group holds GROUP_TOKENS tokens, at least one row, and never more rows than a partition has."""
    assert cut_rows(32, 2, context).group == group


def test_activations_do_not_grow_with_the_batch() -> None:
    """Guards the groups: a larger microbatch takes more turns, not more memory."""
    small, large = (sum(b.nbytes for b in cpu_buffers(SHAPE, rows, 2)) for rows in (256, 1024))
    assert small == large
