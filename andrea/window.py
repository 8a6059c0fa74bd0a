"""A window: the run of steps between two reshuffles, planned from all losses before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True)
class Window:
    """Plan of steps `start + 1` to `start + len(sources)`; numbers count from 0. One source a step."""

    number: int
    start: int
    sources: tuple[str, ...]

    def until(self, step: int) -> "Window":
        """The same window, ended after `step`."""
        return replace(self, sources=self.sources[: step - self.start])


class Firehose(Protocol):
    """A policy. `state` and `restore` carry everything that `plan` depends on, as plain JSON values."""

    def plan(self, number: int, start: int) -> Window: ...

    def credit(self, window: Window, losses: Sequence[float]) -> None:
        """Learn from a finished window; `losses` in nats per token, one a step."""

    def learned(self) -> dict[str, dict[str, float]]:
        """What it knows of each source after a credit, for the history; empty when it learns nothing."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
