"""A run's history as curves of bounded size: a page about 200,000 steps has to open on a phone.

Raw points are thinned so that peaks survive; smoothed lines are a running mean over all steps, thinned afterwards.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

Points = list[tuple[int, float | None]]  # step, value; None where the value was not finite
Trace = dict[str, Any]

RAW_POINTS = 3000
LINE_POINTS = 1000
WINDOWS = 60  # a smoothed line is a mean over this part of the run, at least 10 steps


def extremes(points: Points, limit: int = RAW_POINTS) -> Points:
    """At most `limit` points: the lowest and the highest of every bucket, in order; all of them when they are few."""
    if len(points) <= limit:
        return points
    kept: set[tuple[int, float | None]] = set()
    buckets = limit // 2
    for number in range(buckets):
        bucket = points[number * len(points) // buckets : (number + 1) * len(points) // buckets]
        finite = [point for point in bucket if point[1] is not None]
        if finite:
            kept |= {min(finite, key=_value), max(finite, key=_value)}
    return sorted(kept, key=lambda point: point[0])


def smoothed(points: Points, steps: int) -> Points:
    """Mean over the points around each; values that are None are passed over.

    Near the start as many before as behind, so that the mean of a falling loss lies among its points; at the end those
    that there are.
    """
    finite = [(step, value) for step, value in points if value is not None]
    sums = [0.0, *itertools.accumulate(value for _, value in finite)]
    half = max(5, steps // WINDOWS // 2)
    line: Points = []
    for place, (step, _) in enumerate(finite):
        left = min(half, place)
        first, end = place - left, min(place + left + 1, len(finite))
        line.append((step, (sums[end] - sums[first]) / (end - first)))
    return thinned(line)


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
        trace("each step", extremes(everything), mode="markers", marker={"size": 3}, opacity=0.5),
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
    return [
        trace(name, extremes([(record["step"], record[key]) for record in records]), mode="lines", line={"width": 1})
    ]


def validation_traces(validations: Sequence[dict[str, Any]], key: str) -> list[Trace]:
    """One line a source of `key` (bits_per_byte, nats_per_token)."""
    sources = sorted({source for record in validations for source in record["validation"]})
    lines = []
    for source in sources:
        points = [(r["step"], r["validation"][source][key]) for r in validations if source in r["validation"]]
        lines.append(trace(source, thinned(points), mode="lines+markers"))
    return lines


def _value(point: tuple[int, float | None]) -> float:
    assert point[1] is not None, "callers pass finite points"
    return point[1]


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
