"""The bandit: bounds on weights, equal plans, and a bound on how long an arm may rest."""

import json
import math

import numpy as np
from bandit_kit import FALL, LEARNING, Packed, drive, recipe, shares
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.bandit import Bandit
from andrea.recipe import FirehoseSpec

names = st.lists(st.sampled_from([f"s{i}" for i in range(16)]), min_size=1, max_size=16, unique=True)


@st.composite
def bandits(draw: st.DrawFn) -> Bandit:
    """Any valid settings over one to sixteen sources."""
    sources = draw(names)
    counts = {name: draw(st.integers(1, 3000)) for name in sources}
    floors = {name: draw(st.sampled_from([0.0, 0.2, 0.8])) for name in sources}
    caps = {name: max(floors[name], draw(st.sampled_from([0.0, 0.5, 1.0, 1.3]))) for name in sources}
    opened = draw(st.sampled_from(sources))
    caps[opened] = max(caps[opened], 0.5)
    spec = recipe(
        counts,
        reward=draw(st.sampled_from([LEARNING, FALL])),
        focus_sources=draw(st.sampled_from([(1, 1), (1, 6), (3, 20)])),
        background=draw(st.sampled_from([0.0, 0.1, 1.0])),
        floors=floors,
        caps=caps,
        curriculum_warmup_steps=draw(st.sampled_from([0, 1, 50])),
        curriculum_warmup_sources=(opened,),
        longest_rest=draw(st.integers(1, 20)),
    )
    return Bandit(spec, draw(st.integers(0, 9)), Packed(counts))


@settings(max_examples=60, deadline=None)
@given(bandits(), st.integers(0, 12))
def test_probabilities_sum_to_one_and_weights_keep_floor_and_cap(bandit: Bandit, windows: int) -> None:
    """The original's floors sum to 3: they can only bound weights, and shares must be normalised after them."""
    done = drive(bandit, windows)
    start = sum(len(window.sources) for window in done)
    rank = bandit.rank(windows, start)
    spec = bandit.spec
    for i, name in enumerate(bandit.names):
        if rank.eligible[i]:
            assert spec.floors[name] <= rank.weight[i] <= spec.caps[name]
        else:
            assert rank.weight[i] == 0
    assert math.isclose(rank.probability.sum(), 1, rel_tol=1e-12)
    assert (rank.probability >= 0).all()
    assert rank.focus.any()
    assert not (rank.focus & ~rank.eligible).any()


@settings(max_examples=40, deadline=None)
@given(bandits())
def test_every_eligible_arm_is_pulled_within_the_stated_bound(bandit: Bandit) -> None:
    """(longest_rest + arms) windows: without it, an arm with a background of 0 could starve and never be heard again."""
    rest = bandit.spec.longest_rest + len(bandit.names)
    done = drive(bandit, 3 * rest)
    starts = np.cumsum([0, *(len(window.sources) for window in done)])
    for i, name in enumerate(bandit.names):
        since = 0
        for window, start in zip(done, starts, strict=False):
            eligible = bool(bandit._eligible(int(start))[i])
            since = 0 if name in window.sources or not eligible else since + 1
            assert since <= rest


@settings(max_examples=40, deadline=None)
@given(bandits(), st.integers(1, 15), st.integers(1, 15))
def test_a_restored_bandit_equals_an_undisturbed_one(bandit: Bandit, before: int, after: int) -> None:
    """Exact resume: state goes through JSON text and every later plan and state is the same."""
    fresh = Bandit(
        FirehoseSpec("bandit", dict.fromkeys(bandit.names, 1.0), (7, 42), bandit.spec), bandit.seed, bandit.corpus
    )
    done = drive(bandit, before)
    text = json.dumps(bandit.state(), allow_nan=False)
    fresh.restore(json.loads(text))
    assert json.dumps(fresh.state()) == text
    start = sum(len(window.sources) for window in done)
    assert drive(bandit, after, first=before, start=start) == drive(fresh, after, first=before, start=start)
    assert fresh.state() == bandit.state()


def test_same_seed_same_plans_other_seed_other_plans() -> None:
    """And the order of sources in the experiment file decides nothing."""
    counts = {f"s{i}": 100 * (i + 1) for i in range(6)}
    backwards = dict(reversed(counts.items()))
    first = drive(Bandit(recipe(counts), 1, Packed(counts)), 30)
    assert first == drive(Bandit(recipe(backwards), 1, Packed(backwards)), 30)
    assert first != drive(Bandit(recipe(counts), 2, Packed(counts)), 30)


def test_windows_have_all_lengths_and_shares_follow_the_weights() -> None:
    """Steps are dealt: the share of a source over a window is its probability, to within one step."""
    counts = {f"s{i}": 10**6 for i in range(5)}
    bandit = Bandit(recipe(counts, longest_rest=10**6), 3, Packed(counts))
    lengths = set()
    start = 0
    for number in range(300):
        window, rank = bandit.plan(number, start), bandit.rank(number, start)
        dealt = np.array([window.sources.count(name) for name in bandit.names])
        assert (np.abs(dealt - rank.probability * len(window.sources)) < 1 + 1e-9).all()
        lengths.add(len(window.sources))
        start += len(window.sources)
    assert lengths == set(range(7, 43))


def test_the_warm_up_draws_from_its_sources_and_its_end_cuts_the_window() -> None:
    """A window across the end would draw warm-up sources only, after it."""
    counts = {f"s{i}": 500 for i in range(6)}
    spec = recipe(
        counts,
        curriculum_warmup_steps=100,
        curriculum_warmup_sources=("s1", "s4"),
        floors={**dict.fromkeys(counts, 0.0), "s0": 0.8},
    )
    done = drive(Bandit(spec, 5, Packed(counts)), 40)
    steps = [name for window in done for name in window.sources]
    assert set(steps[:100]) == {"s1", "s4"}
    assert set(steps[100:]) == set(counts)
    assert 100 in {window.start for window in done}
    after = [window for window in done if window.start >= 100]
    plain = drive(Bandit(recipe(counts), 5, Packed(counts)), 40)
    assert [len(w.sources) for w in after] == [len(plain[w.number].sources) for w in after]


def test_a_cap_of_zero_switches_a_source_off() -> None:
    """Also out of the rest rule, and out of the warm-up."""
    counts = dict.fromkeys(("a", "b", "c"), 500)
    done = drive(Bandit(recipe(counts, caps={"a": 0.0, "b": 1.3, "c": 1.3}, longest_rest=2), 5, Packed(counts)), 60)
    assert set(shares(done)) == {"b", "c"}
