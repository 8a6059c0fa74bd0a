"""A run's history as curves of bounded size: a page about 200,000 steps has to open on a phone.

Raw points are thinned so that peaks survive; smoothed lines are a running mean over all steps, thinned afterwards.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from andrea.decimate import Floats, Steps, extremes, running_means

Points = list[tuple[int, float | None]]  # step, value; None where the value was not finite
Trace = dict[str, Any]

RAW_POINTS = 3000
LINE_POINTS = 1000
WINDOWS = 60  # a smoothed line is a mean over this part of the run, at least 10 steps


def peaks(points: Points, limit: int = RAW_POINTS) -> Points:
    """At most `limit` points, the lowest and the highest of every stretch among them; all of them when they are few."""
    if len(points) <= limit:
        return points
    x, y = extremes(*_columns(points), limit // 2 - 1)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def smoothed(points: Points, steps: int) -> Points:
    """At most LINE_POINTS means over the points around; values that are None are passed over."""
    x, y = _columns([point for point in points if point[1] is not None])
    if not x.size:
        return []
    places, means = running_means(y, 1, x.size, LINE_POINTS, 2 * max(5, steps // WINDOWS // 2) + 1)
    return list(zip(x[places - 1].tolist(), means.tolist(), strict=True))


def thinned(points: Points, limit: int = LINE_POINTS) -> Points:
    """At most `limit` points at even distances, the last one among them."""
    if len(points) <= limit:
        return points
    return [points[(number + 1) * len(points) // limit - 1] for number in range(limit)]


def trace(name: str, points: Points, **style: Any) -> Trace:
    """One plotly trace. Five digits are more than a screen shows and keep the page small."""
    return {"name": name, "x": [x for x, _ in points], "y": [_short(y) for _, y in points], "type": "scatter", **style}


def loss_traces(records: Sequence[dict[str, Any]]) -> list[Trace]:
    """Raw loss, the smoothed loss, and one smoothed line a source; nats per token."""
    everything: Points = [(record["step"], record["loss"]) for record in records]
    steps = len(everything)
    traces = [
        trace("each step", peaks(everything), mode="markers", marker={"size": 3}, opacity=0.5),
        trace("smoothed", smoothed(everything, steps), mode="lines"),
    ]
    sources = sorted({record["source"] for record in records})
    if len(sources) > 1:
        for source in sources:
            own: Points = [(record["step"], record["loss"]) for record in records if record["source"] == source]
            traces.append(trace(source, smoothed(own, len(own)), mode="lines", line={"width": 1.5}))
    return traces


def share_traces(records: Sequence[dict[str, Any]]) -> list[Trace]:
    """What part of the steps each source had, as a running mean; nothing when there is one source."""
    sources, steps = sorted({record["source"] for record in records}), len(records)
    if len(sources) < 2:
        return []
    drawn = {source: [(r["step"], float(r["source"] == source)) for r in records] for source in sources}
    return [trace(source, smoothed(list(points), steps), mode="lines") for source, points in drawn.items()]


def coherence_traces(samples: Sequence[dict[str, Any]]) -> list[Trace]:
    """Mean score of every round of samples that has scores; nothing when none has."""
    rounds: dict[int, list[float]] = {}
    for sample in samples:
        if "coherence" in sample:
            rounds.setdefault(sample["step"], []).append(sample["coherence"])
    points: Points = [(step, sum(scores) / len(scores)) for step, scores in sorted(rounds.items())]
    return [trace("mean of the samples", thinned(points), mode="lines+markers")] if points else []


def line_traces(records: Sequence[dict[str, Any]], key: str, name: str) -> list[Trace]:
    """One quantity over the steps, peaks kept."""
    return [trace(name, peaks([(record["step"], record[key]) for record in records]), mode="lines", line={"width": 1})]


def table_traces(records: Sequence[dict[str, Any]], table: str, key: str, mode: str) -> list[Trace]:
    """One line a source, of `key` in the records that have `table`: {source: {key: number}}."""
    tables = [(record["step"], record[table]) for record in records if table in record]
    sources = sorted({source for _, found in tables for source in found})
    points = {source: [(step, found[source][key]) for step, found in tables if source in found] for source in sources}
    return [trace(source, thinned(list(points[source])), mode=mode) for source in sources]


def _columns(points: Points) -> tuple[Steps, Floats]:
    """(n,) steps and values, None as NaN."""
    return np.array([x for x, _ in points], np.int64), np.array([y for _, y in points], np.float64)


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
