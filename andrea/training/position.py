"""Where a run stands after a step: everything beside weights and moments that the next step depends on.

Saved as <EXP>.state.json and beside each checkpoint. It holds no time, no path and nothing of `train.steps`, so that
equal runs have equal bytes. `losses` are those of the window so far: the firehose gets them when the window is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from andrea.errors import CheckpointError
from andrea.window import Firehose, Window


@dataclass
class Position:
    """`step` finished updates, `pulls` of each source, and the window that the next step lies in.

    `polish` is the section of the experiment that the steps since the pivot were trained under; None before it.
    """

    step: int
    window: Window
    losses: list[float]
    pulls: dict[str, int]
    polish: dict[str, Any] | None = None

    @classmethod
    def first(cls, firehose: Firehose, sources: Sequence[str]) -> Self:
        return cls(0, firehose.plan(0, 0), [], dict.fromkeys(sorted(sources), 0))

    @property
    def ahead(self) -> tuple[str, ...]:
        """Sources of the steps that the window still plans; never empty."""
        return self.window.sources[len(self.losses) :]

    def advance(self, losses: Sequence[float], firehose: Firehose) -> bool:
        """Note the losses of the next steps; a full window is credited and the next one planned. Whether it was full."""
        for source in self.ahead[: len(losses)]:
            self.pulls[source] += 1
        self.step += len(losses)
        self.losses += losses
        if self.ahead:
            return False
        firehose.credit(self.window, self.losses)
        self.window, self.losses = firehose.plan(self.window.number + 1, self.step), []
        return True

    def pivot(self, polish: dict[str, Any], before: Firehose, after: Firehose) -> None:
        """Go on under `polish` and the policy `after`, which takes over what `before` has learned.

        The window under way ends here and is credited; one that has not begun is planned anew.
        """
        number = self.window.number
        if self.losses:
            before.credit(self.window.until(self.step), self.losses)
            number += 1
        after.restore(before.state())
        self.window, self.losses, self.polish = after.plan(number, self.step), [], polish

    def to_json(self, firehose: Firehose, fingerprint: str) -> dict[str, Any]:
        window = {"number": self.window.number, "start": self.window.start, "sources": list(self.window.sources)}
        return {
            "fingerprint": fingerprint,
            "step": self.step,
            "window": window | {"place": len(self.losses), "losses": list(self.losses)},
            "pulls": dict(sorted(self.pulls.items())),
            "polish": self.polish,
            "firehose": firehose.state(),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], firehose: Firehose, sources: Sequence[str], path: Path) -> Self:
        """Read a state that belongs to these sources and bring `firehose` to it; CheckpointError when it does not."""
        try:
            plan = state["window"]
            window = Window(plan["number"], plan["start"], tuple(plan["sources"]))
            losses = [float(x) for x in plan["losses"]]
            position = cls(state["step"], window, losses, dict(state["pulls"]), state["polish"])
            firehose_state = dict(state["firehose"])
            counts = (position.step, window.number, window.start, *position.pulls.values())
            fits = (
                all(type(n) is int and n >= 0 for n in counts)
                and sorted(position.pulls) == sorted(sources)
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
