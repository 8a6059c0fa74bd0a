"""The state beside weights and moments: windows, pulls, and hostile state files."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from andrea.errors import CheckpointError
from andrea.firehose import Window
from andrea.training.position import Position


class Counting:
    """A policy that learns: its next window depends on all losses so far."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def plan(self, number: int, start: int) -> Window:
        total = int(sum(self.seen) * 1000)
        return Window(number, start, tuple("ab"[(total >> i) & 1] for i in range(3 + total % 4)))

    def credit(self, window: Window, losses: Sequence[float]) -> None:
        assert len(losses) == len(window.sources)
        self.seen += losses

    def state(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seen = list(state["seen"])


def walk(position: Position, firehose: Counting, until: int, chunk: int) -> None:
    """Advance with made-up losses that follow from the step."""
    while position.step < until:
        size = min(chunk, len(position.ahead), until - position.step)
        position.advance([((position.step + i) * 37 % 101) / 100 for i in range(size)], firehose)


@pytest.mark.parametrize("stop", range(0, 40, 3))
def test_a_learning_policy_resumes_exactly(stop: int) -> None:
    """Losses of a window that was cut by a stop must all reach the policy, once."""
    whole, mind = Position.first(Counting(), "ab"), Counting()
    walk(whole, mind, 60, 5)
    first = Counting()
    half = Position.first(first, "ab")
    walk(half, first, stop, 2)
    state = json.loads(json.dumps(half.to_json(first, "f")))
    second = Counting()
    resumed = Position.from_json(state, second, "ab", Path("x"))
    walk(resumed, second, 60, 4)
    assert resumed.to_json(second, "f") == whole.to_json(mind, "f")
    assert sum(resumed.pulls.values()) == 60


def test_a_saved_state_does_not_change_afterwards() -> None:
    """It is written in the background while training goes on."""
    firehose = Counting()
    position = Position.first(firehose, "ab")
    state = position.to_json(firehose, "f")
    before = copy.deepcopy(state)
    walk(position, firehose, 2, 1)
    assert state == before


@pytest.mark.parametrize(
    "change",
    [
        {"step": 5},
        {"pulls": {"a": 2}},
        {"pulls": {"a": 1, "b": 1, "c": 0}},
        {"pulls": 3},
        {"window": {}},
        {"window": {"number": 0, "start": 0, "sources": ["a", "zzz"], "place": 2, "losses": [1.0, 1.0]}},
        {"window": {"number": 0, "start": 0, "sources": ["a", "b"], "place": 2, "losses": [1.0, 1.0]}},
        {"window": {"number": 0, "start": 0, "sources": ["a"] * 9, "place": 2, "losses": ["x", 1]}},
        {"firehose": None},
        {"step": 2.0},
        {"pulls": {"a": -1, "b": 3}},
        {"window": {"number": "0", "start": 0, "sources": ["a"] * 9, "place": 2, "losses": [1.0, 1.0]}},
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    """Edited by hand, or of an experiment with other sources."""
    firehose = Counting()
    position = Position.first(firehose, "ab")
    walk(position, firehose, 2, 1)
    state = position.to_json(firehose, "f")
    Position.from_json(state, Counting(), "ab", Path("x"))
    with pytest.raises(CheckpointError, match="this experiment's sources"):
        Position.from_json(state | change, Counting(), "ab", Path("x"))
