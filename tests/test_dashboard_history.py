"""What is kept of a history, and how it is thinned: peaks stay, means are means, nonsense is refused."""

import math
from typing import Any

import numpy as np
import pytest
from dashboard_kit import sample, start, steps

from andrea.dashboard.happened import Happened
from andrea.dashboard.history import MOST_SOURCES, History
from andrea.dashboard.samples import KEPT_ROUNDS, Samples
from andrea.decimate import extremes, running_means


def test_peaks_survive_decimation() -> None:
    """The one spike of 200,000 steps is what one looks for."""
    x, y = np.arange(1, 200_001), np.random.default_rng(0).normal(2, 0.1, 200_000)
    y[77_776], y[150_000], y[5] = 99.0, -3.0, math.nan
    kept_x, kept_y = extremes(x, y, 600)
    assert len(kept_x) <= 1202 and (kept_x[0], kept_x[-1]) == (1, 200_000) and (np.diff(kept_x) > 0).all()
    assert kept_y.max() == 99 and kept_x[kept_y.argmax()] == 77_777
    assert kept_y.min() == -3 and np.isfinite(kept_y).all()
    assert (y[kept_x - 1] == kept_y).all()
    for start_, end in ((70_000, 80_000), (77_700, 77_800)):  # a bin's extremes are its own
        part = extremes(x[start_:end], y[start_:end], 50)
        assert part[1].max() == 99
    few = extremes(x[:1200], y[:1200], 600)
    assert len(few[0]) == 1199  # all but the NaN


def test_running_means_are_means() -> None:
    """Sums that are kept as differences may drift, and windows may be off by one."""
    y = np.random.default_rng(1).normal(3, 1, 5000)
    y[100:150] = math.nan
    places, means = running_means(y, 1, 5000, 700, 37)
    assert places[0] == 1 and places[-1] == 5000
    for place, mean in zip(places.tolist(), means.tolist(), strict=True):
        half = min(18, place - 1)
        assert mean == pytest.approx(np.nanmean(y[place - 1 - half : place + half]), abs=1e-12)
    assert not set(range(119, 133)) & set(places.tolist())  # nothing is known there
    part, same = running_means(y, 2000, 2100, 101, 37)
    assert dict(zip(part.tolist(), same.tolist(), strict=True))[2050] == pytest.approx(np.mean(y[2031:2068]), abs=1e-12)


def test_the_mean_of_a_falling_loss_lies_among_its_points() -> None:
    """A mean of what came before lay above every point of the first hundred steps."""
    y = np.linspace(7, 2, 300)
    places, means = running_means(y, 1, 300, 300, 60)
    assert np.abs(means - y[places - 1])[:-60].max() < (y[0] - y[1])


def test_a_history_is_kept_exactly() -> None:
    """Values on the page are the file's."""
    history, records = History(), steps(1, 50)
    records[6] |= {"loss": None, "nonfinite": {"loss": "nan"}}
    records[9]["firehose"] = {"alpha": {"reward": 0.5, "coverage": 0.1}}
    rates = {"alpha": {"nats_per_token": 2.0, "bits_per_byte": 1.5}}
    for record in records[:10]:
        assert history.take(record)
    assert history.take({"step": 10, "validation": rates})
    for record in records[10:]:
        assert history.take(record)
    assert history.column("norm").tolist() == [r["norm"] for r in records]
    assert math.isnan(history.column("loss")[6]) and history.nonfinite == [7]
    assert [history.sources[i] for i in history.drawn()] == [r["source"] for r in records]
    found, values = history.validations["bits_per_byte"].between(1, 50)
    assert (found.tolist(), values["alpha"].tolist()) == ([10], [1.5])
    assert history.learned["reward"].between(11, 50)[0].size == 0
    history.forget()
    assert history.last == 0 and history.column("loss").size == 0


GOOD = steps(1, 1)[0]
RATE = {"nats_per_token": 1.0, "bits_per_byte": 1.0}
BAD: list[Any] = [
    None,
    7,
    [],
    {},
    GOOD | {"step": 2},
    GOOD | {"step": True},
    GOOD | {"step": 1.0},
    GOOD | {"loss": "1"},
    GOOD | {"loss": True},
    GOOD | {"lr": None},
    GOOD | {"norm": 10**400},
    GOOD | {"ms": math.inf},
    GOOD | {"source": None},
    GOOD | {"firehose": [1]},
    GOOD | {"firehose": {"a": {"reward": 1.0}}},
    {"step": 3, "validation": {}},
    {"step": 0, "validation": []},
    {"step": 0, "validation": {"a": {"nats_per_token": "x", "bits_per_byte": 1.0}}},
    {"step": 0, "validation": {str(n): RATE for n in range(MOST_SOURCES + 1)}},
]


@pytest.mark.parametrize("record", BAD)
def test_what_the_trainer_never_writes_is_refused(record: Any) -> None:
    """A number of another kind would end in a traceback, a curve of a million sources in a full memory."""
    history = History()
    assert not history.take(record)
    assert history.last == 0 and history.sources == []
    assert not any(column.values for column in (*history.validations.values(), *history.learned.values()))


def test_sources_are_bounded() -> None:
    """A hostile file must not make a curve for every step."""
    history = History()
    taken = [history.take(GOOD | {"step": n, "source": f"s{n}"}) for n in range(1, MOST_SOURCES + 2)]
    assert taken == [True] * MOST_SOURCES + [False]


def test_samples_keep_scores_and_the_last_texts() -> None:
    """Texts of a whole run are megabytes."""
    samples = Samples()
    for step in range(10, 200, 10):
        assert samples.take(sample(step)) and samples.take(sample(step) | {"coherence": 70})
    assert samples.scores == dict.fromkeys(range(10, 200, 10), 60.0)
    assert list(samples.texts) == [170, 180, 190] and len(samples.texts) == KEPT_ROUNDS
    assert (
        samples.take({"step": 200, "prompt": "", "text": "x" * 10**6}) and len(samples.texts[200][0]["text"]) < 30_000
    )
    for record in (None, {}, sample(10), sample(300) | {"text": 3}, sample(300) | {"coherence": "high"}):
        assert not samples.take(record)


def test_events_say_how_it_ended() -> None:
    """A wish for a checkpoint is no reason for a stop; what a crash has undone is no mark."""
    happened = Happened()

    def note(event: str, **facts: Any) -> None:
        assert happened.take({"time": 1e9 + facts.get("step", 0), "event": event, **facts})

    assert happened.take(start())
    for step in (10, 20):
        note("checkpoint", step=step)
    assert happened.pace() == 1.0
    note("signal", step=21, name="SIGUSR1")
    note("stopped")
    assert (happened.last, happened.reason) == ("stopped", "")
    assert happened.take(start(10)) and happened.pace() is None
    assert [(mark.kind, mark.step) for mark in happened.marks] == [
        ("start", 0),
        ("checkpoint", 10),
        ("signal", 21),
        ("start", 10),
    ]
    note("signal", step=15, name="SIGTERM")
    note("checkpoint", step=15)
    note("stopped")
    assert happened.reason == "SIGTERM"
    note("failed", reason="disk full")
    assert (happened.last, happened.reason) == ("failed", "disk full")
    for bad in (
        None,
        {},
        {"event": "start"},
        start(steps="many"),
        start(memory={"weights": "much"}),
        start() | {"event": "party"},
    ):
        assert not happened.take(bad)
    assert happened.begun.step == 10
