"""Where a run stands after a step: everything beside weights and moments that the next step depends on.

Saved as <EXP>.state.json and beside each checkpoint. It holds no time, no path and nothing of `train.steps`, so that
equal runs have equal bytes. `losses` are those of the window so far: the firehose gets them when the window is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from andrea.errors import CheckpointError
from andrea.firehose import Firehose, Window


@dataclass
class Position:
    """`step` finished updates, `pulls` of each source, and the window that the next step lies in."""

    step: int
    window: Window
    losses: list[float]
    pulls: dict[str, int]

    @classmethod
    def first(cls, firehose: Firehose, sources: Sequence[str]) -> Self:
        return cls(0, firehose.plan(0, 0), [], dict.fromkeys(sorted(sources), 0))

    @property
    def ahead(self) -> tuple[str, ...]:
        """Sources of the steps that the window still plans; never empty."""
        return self.window.sources[len(self.losses) :]

    def advance(self, losses: Sequence[float], firehose: Firehose) -> None:
        """Note the losses of the next steps; a full window is credited and the next one planned."""
        for source in self.ahead[: len(losses)]:
            self.pulls[source] += 1
        self.step += len(losses)
        self.losses += losses
        if not self.ahead:
            firehose.credit(self.window, self.losses)
            self.window, self.losses = firehose.plan(self.window.number + 1, self.step), []

    def to_json(self, firehose: Firehose, fingerprint: str) -> dict[str, Any]:
        window = {"number": self.window.number, "start": self.window.start, "sources": list(self.window.sources)}
        return {
            "fingerprint": fingerprint,
            "step": self.step,
            "window": window | {"place": len(self.losses), "losses": list(self.losses)},
            "pulls": dict(sorted(self.pulls.items())),
            "firehose": firehose.state(),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], firehose: Firehose, sources: Sequence[str], path: Path) -> Self:
        """Read a state that belongs to these sources and bring `firehose` to it; CheckpointError when it does not."""
        try:
            plan = state["window"]
            window = Window(plan["number"], plan["start"], tuple(plan["sources"]))
            position = cls(state["step"], window, [float(x) for x in plan["losses"]], dict(state["pulls"]))
            firehose_state = dict(state["firehose"])
            fits = (
                sorted(position.pulls) == sorted(sources)
                and set(window.sources) <= set(sources)
                and window.start + len(position.losses) == position.step == sum(position.pulls.values())
                and len(position.losses) == plan["place"] < len(window.sources)
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise _unfit(path, cause) from cause
        if not fits:
            raise _unfit(path, "parts that do not fit together")
        firehose.restore(firehose_state)
        return position


def _unfit(path: Path, got: object) -> CheckpointError:
    return CheckpointError(
        f"{path} must be the state of a run on this experiment's sources", got=got, fix="use another checkpoint"
    )
