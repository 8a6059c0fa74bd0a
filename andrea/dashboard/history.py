"""A loss history in columns: 200,000 steps take 8 MB, and any part of them is at hand as an array."""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SOURCES = 100
NUMBERS = ("loss", "norm", "lr", "ms")
_MAY_BE_NULL = ("loss", "norm")
_NAN = math.nan


class Columns:
    """Rows that come one by one: a step each, and one number for each of `names`, NaN where there is none."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values: dict[str, array[float]] = {}

    def fits(self, names: Iterable[str]) -> bool:
        return len({*self.values, *names}) <= MOST_SOURCES

    def add(self, step: int, row: Mapping[str, float]) -> None:
        for name in row:
            if name not in self.values:
                self.values[name] = array("d", [_NAN]) * len(self.steps)
        self.steps.append(step)
        for name, column in self.values.items():
            column.append(row.get(name, _NAN))

    def between(self, first: int, last: int) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
        """The rows of steps first..last."""
        steps = np.array(self.steps, np.int64)
        low, high = np.searchsorted(steps, [first, last + 1]).tolist()
        return steps[low:high], {name: np.array(column)[low:high] for name, column in self.values.items()}


class History:
    """The records of a .loss.json: `last` steps without a gap, validations, and what the bandit has learned."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.last = 0
        self.sources: list[str] = []
        self._numbers = {name: array("d") for name in NUMBERS}
        self._drawn = array("h")
        self.nonfinite: list[int] = []
        self.validations = {"nats_per_token": Columns(), "bits_per_byte": Columns()}
        self.learned = {"reward": Columns(), "coverage": Columns()}

    def take(self, record: Any) -> bool:
        """Keep one record; False, and nothing kept, when it is not what the trainer writes or not the next one."""
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            return False
        if "validation" in record:
            return record["step"] == self.last and self._take_rates(record["step"], record["validation"])
        return record["step"] == self.last + 1 and self._take_step(record)

    def column(self, name: str, after: int = 0) -> NDArray[np.float64]:
        """(last - after,) "loss", "norm", "lr" or "ms" of the steps past `after`; NaN where it was not finite."""
        return np.array(self._numbers[name][max(0, after) :])

    def drawn(self) -> NDArray[np.int16]:
        """(last,) place in `sources` of the source of each step."""
        return np.array(self._drawn)

    def _take_step(self, record: Mapping[str, Any]) -> bool:
        numbers = {name: record.get(name, "absent") for name in NUMBERS}
        source, learned = record.get("source"), record.get("firehose", {})
        if not all(is_number(x) or (x is None and name in _MAY_BE_NULL) for name, x in numbers.items()):
            return False
        if not isinstance(source, str) or not _fits(learned, self.learned):
            return False
        if source not in self.sources:
            if len(self.sources) == MOST_SOURCES:
                return False
            self.sources.append(source)
        self.last += 1
        for name, x in numbers.items():
            self._numbers[name].append(_NAN if x is None else x)
        if numbers["loss"] is None or numbers["norm"] is None:
            self.nonfinite.append(self.last)
        self._drawn.append(self.sources.index(source))
        if learned:
            _spread(self.learned, self.last, learned)
        return True

    def _take_rates(self, step: int, rates: Any) -> bool:
        if not _fits(rates, self.validations):
            return False
        _spread(self.validations, step, rates)
        return True


def is_number(value: object) -> bool:
    """A number of JSON, so far from the end of the floats that sums and products of a few stay finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e100 < value < 1e100


def _fits(table: object, columns: Mapping[str, Columns]) -> bool:
    """Whether `table` is {source: {key: number}}, with a number for each of `columns`."""
    return (
        isinstance(table, dict)
        and all(isinstance(row, dict) and all(is_number(row.get(key)) for key in columns) for row in table.values())
        and all(column.fits(table) for column in columns.values())
    )


def _spread(columns: Mapping[str, Columns], step: int, table: Mapping[str, Mapping[str, float]]) -> None:
    for key, column in columns.items():
        column.add(step, {source: row[key] for source, row in table.items()})
