"""What the page shows of a run, as JSON of bounded size: facts, curves of a range of steps, marks, samples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.dashboard.history import NUMBERS, Columns, History
from andrea.dashboard.watch import Watch
from andrea.decimate import extremes, places, running_means

Series = dict[str, Any]  # name, kind ("dots", "line"), x, y
_RECENT = 100  # steps that "now" is a mean of
_PARTS = 60  # smoothing by itself: over this part of the steps shown
_LEAST = 10  # steps
_SCORES = 300  # pairs of points
_CHECKPOINTS = 150


@dataclass(frozen=True)
class Asked:
    """Steps `first`..`last` (0: as far as there are), curves of about `bins` points, means over `smooth` steps (0: itself)."""

    first: int = 1
    last: int = 0
    bins: int = 600
    smooth: int = 0


def view(watch: Watch, asked: Asked) -> dict[str, Any]:
    """The answer to `asked`; `watch` has been refreshed."""
    history = watch.history
    last = min(asked.last or history.last, history.last)
    first = min(max(asked.first, 1), max(last, 1))
    width = asked.smooth or max(_LEAST, (last - first + 1) // _PARTS)
    samples = watch.samples()
    return {
        "run": watch.name,
        "folder": str(watch.folder),
        "state": watch.state._asdict(),
        "facts": _facts(watch),
        "troubles": watch.troubles,
        "complete": watch.complete,
        "first": first,
        "last": last,
        "smooth": width,
        "charts": _charts(watch, first, last, max(asked.bins, 4), width) | _scores(samples.scores, first, last),
        "units": {"speed": "tokens per second" if watch.happened.begun.tokens else "steps per second"},
        "marks": _marks(watch, first, last),
        "nonfinite": history.nonfinite[-20:],
        "kept": watch.kept[-50:],
        "samples": [{"step": step, "texts": texts} for step, texts in sorted(samples.texts.items(), reverse=True)],
    }


def _marks(watch: Watch, first: int, last: int) -> list[dict[str, Any]]:
    """What happened at the steps shown; of checkpoints as many as a screen has room for, at even distances."""
    inside = [mark for mark in watch.happened.marks if first - 1 <= mark.step <= last]
    saved = [mark for mark in inside if mark.kind == "checkpoint"]
    kept = {saved[i] for i in range(0, len(saved), -(-len(saved) // _CHECKPOINTS) or 1)}
    return [mark._asdict() for mark in inside if mark.kind != "checkpoint" or mark in kept]


def _facts(watch: Watch) -> dict[str, Any]:
    history, begun = watch.history, watch.happened.begun
    recent = {name: history.column(name, history.last - _RECENT) for name in NUMBERS}
    ms = _mean(recent["ms"])
    left = begun.steps - history.last
    pace = watch.happened.pace() or (ms / 1000 if ms is not None else None)
    rates = {key: _mean(_last_row(columns)) for key, columns in history.validations.items()}
    return {
        "step": history.last,
        "steps": begun.steps or None,
        "loss": _mean(recent["loss"]),
        "last_loss": _number(recent["loss"][-1]) if history.last else None,
        "norm": _number(recent["norm"][-1]) if history.last else None,
        "lr": _number(recent["lr"][-1]) if history.last else None,
        **rates,
        "tokens_per_second": 1000 * begun.tokens / max(ms, 1e-9) if ms and begun.tokens else None,
        "seconds_left": left * pace if pace is not None and left > 0 and watch.state.name == "training" else None,
        "memory": begun.memory,
        "resident": watch.resident(),
        "engine": begun.engine,
        "age": max(0.0, time.time() - watch.written) if watch.written else None,
    }


def _charts(watch: Watch, first: int, last: int, bins: int, width: int) -> dict[str, list[Series]]:
    history = watch.history
    if not history.last:
        return {}
    steps = np.arange(first, last + 1)
    values = {name: history.column(name) for name in NUMBERS}
    fewer = max(1, bins // 2)  # for all but the loss

    def peaks(name: str, key: str, kind: str, points: int) -> Series:
        return _series(name, *extremes(steps, values[key][first - 1 : last], points), kind)

    def smooth(key: str, points: int) -> Series:
        return _series("smoothed", *running_means(values[key], first, last, points, width))

    steps_of_speed, ms = running_means(values["ms"], first, last, fewer, width)
    speed = 1000 * (watch.happened.begun.tokens or 1) / np.maximum(ms, 1e-9)
    return {
        "loss": [peaks("each step", "loss", "dots", bins), smooth("loss", bins)],
        **{key: _rows(columns, first, last, fewer) for key, columns in history.validations.items()},
        "lr": [peaks("learning rate", "lr", "line", fewer)],
        "norm": [peaks("each step", "norm", "dots", fewer), smooth("norm", fewer)],
        "speed": [_series("speed", steps_of_speed, speed)],
        **_drawn(history, watch.happened.begun.epochs, first, last, fewer, width),
        **{key: _rows(columns, first, last, fewer // 2) for key, columns in history.learned.items()},
    }


def _drawn(
    history: History, epochs: dict[str, float], first: int, last: int, bins: int, width: int
) -> dict[str, list[Series]]:
    """How each source was drawn: its share of the steps, as a running mean, and how often it was gone through."""
    drawn, steps = history.drawn()[:last], places(first, last, bins)
    before = np.maximum(steps - max(width, 50), 0)
    found: dict[str, list[Series]] = {"share": [], "epochs": []}
    for source in sorted(history.sources):
        pulls = np.concatenate([[0], np.cumsum(drawn == history.sources.index(source))])
        found["share"].append(_series(source, steps, (pulls[steps] - pulls[before]) / (steps - before)))
        if source in epochs:
            found["epochs"].append(_series(source, steps, pulls[steps] * epochs[source]))
    return found


def _rows(columns: Columns, first: int, last: int, bins: int) -> list[Series]:
    steps, values = columns.between(first, last)
    return [_series(name, *extremes(steps, values[name], bins), "points") for name in sorted(values)]


def _scores(scores: dict[int, float], first: int, last: int) -> dict[str, list[Series]]:
    steps = np.array([step for step in sorted(scores) if first <= step <= last], np.int64)
    values = np.array([scores[step] for step in steps.tolist()])
    return {"coherence": [_series("mean of the samples", *extremes(steps, values, _SCORES), "points")]}


def _series(name: str, x: NDArray[np.int64], y: NDArray[np.float64], kind: str = "line") -> Series:
    """Six digits are more than a screen shows and keep the answer small."""
    scale = 10.0 ** (5 - np.floor(np.log10(np.maximum(np.abs(y), 1e-290))))
    return {"name": name, "kind": kind, "x": x.tolist(), "y": (np.round(y * scale) / scale).tolist()}


def _last_row(columns: Columns) -> Sequence[float]:
    return [column[-1] for column in columns.values.values()]


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
