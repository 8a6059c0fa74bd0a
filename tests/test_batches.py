"""Batches: every block once an epoch, contiguous tokens, no hidden state, short sources."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.batches import Batches, cut_blocks
from andrea.btok import Btok, open_btok, write
from andrea.errors import DataError

T = 8


def tokens(folder: Path, name: str, lengths: list[int]) -> Btok:
    """A token file whose tokens count up, so that a block shows where it came from; BOS (256) opens each document."""
    path, start, arrays = folder / f"{name}.btok", 0, []
    for length in lengths:
        array = 257 + np.arange(start, start + length, dtype=np.uint32)
        array[0] = 256
        arrays.append(array)
        start += length
    write(path, arrays, vocab_size=100_000, tokenizer_sha256="0" * 64)
    return open_btok(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Btok]:
    folder = tmp_path_factory.mktemp("tokens")
    lengths = {"long": [5, 30, 1, 64, 300], "short": [20], "one": [9], "exact": [17]}
    return {name: tokens(folder, name, sizes) for name, sizes in lengths.items()}


def batches(corpus: dict[str, Btok], rows: int = 6, seed: int = 1) -> Batches:
    return Batches(corpus, T, rows, seed)


def test_a_block_is_contiguous_and_neighbours_share_one_token(corpus: dict[str, Btok]) -> None:
    """The target of the last position is the first token of the next block: without the overlap it is never learned."""
    blocks, flat = cut_blocks(corpus["long"], T), corpus["long"].tokens
    assert blocks.shape == (49, T + 1)
    for i, block in enumerate(blocks):
        assert block.tolist() == flat[i * T : i * T + T + 1].tolist()


@pytest.mark.parametrize(("name", "count"), [("long", 49), ("short", 2), ("one", 1), ("exact", 2)])
def test_number_of_blocks(corpus: dict[str, Btok], name: str, count: int) -> None:
    """An off-by-one reads past the end, or loses the last block of a file that fits exactly."""
    assert batches(corpus).counts[name] == count


@pytest.mark.parametrize("rows", [1, 4, 6, 7, 49, 50, 120])
def test_each_epoch_visits_every_block_once(corpus: dict[str, Btok], rows: int) -> None:
    """Also when epochs end inside a batch, and when a batch holds more than an epoch."""
    drawer = batches(corpus, rows)
    count, pulls = drawer.counts["long"], 3 * 49 // rows + 2
    order = np.concatenate([drawer.blocks("long", pull) for pull in range(pulls)])
    for epoch in range(3):
        assert sorted(order[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert order[:count].tolist() != order[count : 2 * count].tolist()


def test_a_source_shorter_than_a_batch_wraps(corpus: dict[str, Btok]) -> None:
    """Some of the user's sources are tiny; every block must come up equally often."""
    drawn = batches(corpus, 6).blocks("short", 5)
    assert sorted(drawn.tolist()) == [0, 0, 0, 1, 1, 1]
    assert batches(corpus, 6).blocks("one", 3).tolist() == [0] * 6


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_steps_at_once_equal_steps_one_by_one(corpus: dict[str, Btok], data: st.DataObject) -> None:
    """A resumed run draws from the middle of a window: place and grouping must not matter."""
    plan = data.draw(st.lists(st.sampled_from(sorted(corpus)), min_size=1, max_size=42))
    pulls = {name: data.draw(st.integers(0, 10**9)) for name in corpus}
    cut = data.draw(st.integers(0, len(plan)))
    drawer, seen = batches(corpus), dict(pulls)
    single = []
    for source in plan:
        single.append(drawer.draw(source, seen[source]))
        seen[source] += 1
    together = np.stack(list(batches(corpus).draw_steps(plan, pulls)))
    assert np.array_equal(together, np.stack(single))
    after = {name: pulls[name] + plan[:cut].count(name) for name in corpus}
    if cut < len(plan):
        ready = batches(corpus)
        if data.draw(st.booleans()):
            ready.make_ready(after)
        assert np.array_equal(np.stack(list(ready.draw_steps(plan[cut:], after))), together[cut:])


def test_the_seed_decides_the_order(corpus: dict[str, Btok]) -> None:
    """Two seeds that read the same order would be one experiment, not two."""
    assert batches(corpus, 49).blocks("long", 0).tolist() != batches(corpus, 49, seed=2).blocks("long", 0).tolist()


def test_documents_of_a_block(corpus: dict[str, Btok]) -> None:
    """The error for a bad batch must name the documents that were in it. Documents start at 0, 5, 35, 36 and 100."""
    drawer = batches(corpus)
    assert list(drawer.documents("long", 0)) == [0, 1]
    assert list(drawer.documents("long", 1)) == [1]
    assert list(drawer.documents("long", 4)) == [1, 2, 3]
    assert list(drawer.documents("long", 48)) == [4]


def test_epochs(corpus: dict[str, Btok]) -> None:
    """Three pulls of six rows from two blocks are nine epochs."""
    assert batches(corpus).epochs("short", 3) == 9.0


def test_a_source_without_a_block_is_an_error_with_its_name(tmp_path: Path) -> None:
    """It must be told before training, not as a division by zero in it."""
    with pytest.raises(DataError, match="the source tiny must hold at least one block of 9 tokens"):
        Batches({"tiny": tokens(tmp_path, "tiny", [T])}, T, 4, 1)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_documents_touched_by_steps_are_those_of_their_blocks(corpus: dict[str, Btok], data: st.DataObject) -> None:
    """The bandit's document sets come from here; also right after those very steps were drawn, and in any order."""
    steps = data.draw(st.lists(st.sampled_from(sorted(corpus)), min_size=1, max_size=8))
    pulls = {name: data.draw(st.integers(0, 30)) for name in corpus}
    drawer, names = batches(corpus, rows=3), sorted(corpus)
    if data.draw(st.booleans()):
        list(drawer.draw_steps(steps, pulls))
    arms, documents = drawer.touched(steps, pulls)
    got = {(names[arm], document) for arm, document in zip(arms.tolist(), documents.tolist(), strict=True)}
    seen, expected = dict(pulls), set()
    for name in steps:
        for block in drawer.blocks(name, seen[name]).tolist():
            expected |= {(name, document) for document in drawer.documents(name, block)}
        seen[name] += 1
    assert got == expected
    assert drawer.document_counts() == {"long": 5, "short": 1, "one": 1, "exact": 1}
