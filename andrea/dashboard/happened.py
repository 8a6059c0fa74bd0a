"""What events.jsonl says: how the run was started last, what has happened since, and marks for the curves."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from andrea.dashboard.history import MOST_SOURCES, is_number

MOST_MARKS = 2000
_MARKS = ("start", "checkpoint", "signal", "pivot")
_WORDS = (*_MARKS, "stopped", "halted", "failed", "finished")
_LONGEST = 2000  # characters of a reason


class Mark(NamedTuple):
    """Something that happened at a step: one of _MARKS; `text` is what, for people."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class Begun:
    """What the last start said; counts of one step, `memory` in bytes by part."""

    time: float = 0.0
    step: int = 0
    steps: int = 0
    pid: int = 0
    engine: str = ""
    tokens: int = 0
    memory: dict[str, float] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)


class Happened:
    """The records of events.jsonl. `last` is the kind of the newest, `reason` why the run ended: an error or a signal."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.last = self.reason = ""
        self.begun = Begun()
        self.marks: list[Mark] = []
        self.saved: tuple[float, int] | None = None  # time and step of the last checkpoint since the start

    def take(self, record: Any) -> bool:
        """Note one event; False when it is none of the trainer's."""
        if not isinstance(record, dict) or record.get("event") not in _WORDS or not is_number(record.get("time")):
            return False
        kind: str = record["event"]
        step, name, reason = record.get("step", 0), record.get("name", ""), record.get("reason", "")
        if not is_count(step) or not isinstance(name, str) or not isinstance(reason, str):
            return False
        if kind == "start" and not self._begin(record):
            return False
        if kind == "checkpoint":
            self.saved = (record["time"], step)
        if kind in _MARKS:
            self._mark(Mark(step, kind, name[:40] or kind))
        if kind == "start" or reason:
            self.reason = reason[:_LONGEST]
        elif kind == "signal" and name != "SIGUSR1":  # which stops nothing
            self.reason = name[:40]
        self.last = kind
        return True

    def pace(self) -> float | None:
        """Wall seconds a step since the last start, everything included; None before the first checkpoint."""
        if self.saved is None or self.saved[1] <= self.begun.step:
            return None
        return max(0.0, self.saved[0] - self.begun.time) / (self.saved[1] - self.begun.step)

    def _begin(self, record: dict[str, Any]) -> bool:
        counts = {key: record.get(key) for key in ("step", "steps", "pid", "tokens")}
        tables = {key: record.get(key) for key in ("memory", "epochs")}
        engine = record.get("engine")
        if not all(map(is_count, counts.values())) or not all(map(_is_table, tables.values())):
            return False
        if not isinstance(engine, str):
            return False
        self.begun = Begun(record["time"], engine=engine[:_LONGEST], **counts, **tables)  # type: ignore[arg-type]
        self.saved = None
        self.marks = [mark for mark in self.marks if mark.step <= self.begun.step or mark.kind == "signal"]
        return True

    def _mark(self, mark: Mark) -> None:
        if mark not in self.marks[-3:]:
            self.marks.append(mark)
        del self.marks[:-MOST_MARKS]


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53


def _is_table(value: object) -> bool:
    """{name: number}"""
    return isinstance(value, dict) and len(value) <= MOST_SOURCES and all(map(is_number, value.values()))
