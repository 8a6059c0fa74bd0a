"""The block order: a bijection for every n, without a pattern, and different each epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from andrea.shuffle import round_keys, shuffled


def order(n: int, seed: int = 1, source: str = "chitchat", epoch: int = 0) -> NDArray[np.int64]:
    keys = np.broadcast_to(round_keys(seed, source, epoch)[:, None], (6, n))
    return shuffled(np.arange(n), np.full(n, n), keys)


@pytest.mark.parametrize("n", [*range(1, 130), 255, 256, 257, 1000, 4097, 15_677, 65_537])
def test_every_thing_stands_at_exactly_one_place(n: int) -> None:
    """A wrong side of the square or a missed cycle walk repeats some blocks and skips others, seen by no loss curve."""
    assert np.array_equal(np.sort(order(n)), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_bijection_for_any_seed_and_epoch(n: int, seed: int, epoch: int) -> None:
    """Keys with high bits set must not overflow into a collision."""
    assert np.array_equal(np.sort(order(n, seed, "a", epoch)), np.arange(n))


@pytest.mark.parametrize("n", [15_677, 100_000])
def test_neighbours_are_not_alike(n: int) -> None:
    """An affine map is a bijection too, with a lag-1 correlation of -0.42: batches would then be alike."""
    places = order(n)
    for lag in (1, 2, 3, 8):
        assert abs(np.corrcoef(places[:-lag], places[lag:])[0, 1]) < 0.02


def test_seed_source_and_epoch_each_change_the_order() -> None:
    """A key that leaves one of them out would repeat the same order every epoch."""
    orders = [order(1000), order(1000, seed=2), order(1000, source="b"), order(1000, epoch=1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert np.mean(one == other) < 0.02


def test_places_of_several_orders_in_one_call() -> None:
    """The vectorised walk must not mix the sizes and keys of different sources."""
    sizes, rng = np.array([7, 1000, 3, 50_000]), np.random.default_rng(0)
    which = rng.integers(0, 4, 400)
    places = rng.integers(0, 1 << 40, 400) % sizes[which]
    keys = np.stack([round_keys(5, str(i), 0) for i in range(4)], axis=1)
    mixed = shuffled(places, sizes[which], keys[:, which])
    single = [
        shuffled(places[i : i + 1], sizes[which[i : i + 1]], keys[:, which[i : i + 1]])[0] for i in range(len(places))
    ]
    assert mixed.tolist() == single


def plain_order(n: int, seed: int, source: str, epoch: int) -> list[int]:
    """The order as its description says it, in whole numbers without a bound."""
    side, keys = next(a for a in range(1, n + 1) if a * a >= n), round_keys(seed, source, epoch).tolist()

    def once(value: int) -> int:
        left, right = divmod(value, side)
        for key in keys:
            x = (right ^ key) % 2**64
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
            left, right = right, (left + (x ^ (x >> 31))) % side
        return left * side + right

    things = list(map(once, range(n)))
    while max(things) >= n:
        things = [thing if thing < n else once(thing) for thing in things]
    return things


@pytest.mark.parametrize("n", [1, 2, 3, 5, 26, 50, 901])
def test_the_order_is_the_described_one(n: int) -> None:
    """Guards both ways of walking on, as arrays and one by one: of 5 and 26 things few lie outside, of 50 and 901 many."""
    assert order(n, 3, "b", 7).tolist() == plain_order(n, 3, "b", 7)
