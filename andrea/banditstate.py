"""One arm's memory, and its JSON form. Floats pass through JSON unchanged: Python writes the shortest text that
reads back as the same number."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from andrea.errors import CheckpointError
from andrea.rewards import Signal


@dataclass(slots=True)
class Arm:
    """A source as the bandit knows it."""

    pulls: int = 0  # steps of its life, over all restarts
    window: int = -1  # the last window that drew from it
    signal: Signal = field(default_factory=Signal)


def arm_to_json(arm: Arm, documents: int, seen: str) -> dict[str, Any]:
    """The arm, the number of its documents, and which have been seen, as Coverage.to_text writes it."""
    return {"pulls": arm.pulls, "window": arm.window, **asdict(arm.signal), "documents": documents, "seen": seen}


def arm_from_json(value: Mapping[str, Any], documents: int, source: str) -> Arm:
    """The inverse of `arm_to_json`, `seen` apart; CheckpointError when it cannot be an arm of `documents` documents."""
    names = [f.name for f in fields(Signal)]
    known = {"pulls", "window", *names, "documents", "seen"}
    if set(value) != known:
        raise _damaged(source, f"exactly {sorted(known)}", sorted(value))
    counts = {key: value[key] for key in ("pulls", "window", "losses", "documents")}
    floats = [value[name] for name in names[1:]]
    least = {"window": -1}
    if any(type(n) is not int or n < least.get(key, 0) for key, n in counts.items()):
        raise _damaged(source, "whole numbers for pulls, window, losses and documents", counts)
    if any(type(x) is not float or not math.isfinite(x) for x in floats) or not isinstance(value["seen"], str):
        raise _damaged(source, "finite numbers and base64 text", floats)
    if counts["losses"] > counts["pulls"] or value["gap2"] < 0 or value["reward"] < 0:
        raise _damaged(source, "no more losses than pulls, and no negative gap2 or reward", counts)
    if counts["documents"] != documents:
        raise _damaged(source, f"of {documents:,} documents, as its tokens are", counts["documents"])
    return Arm(counts["pulls"], counts["window"], Signal(counts["losses"], *floats))


def check_state(state: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """The arms of a bandit's state, which must be `names`."""
    if state.get("policy") != "bandit":
        raise CheckpointError(
            'the state must come from the firehose policy "bandit"',
            got=state.get("policy"),
            fix="set firehose.policy to what the checkpoint was made with",
        )
    arms = state.get("arms")
    if not isinstance(arms, dict) or set(arms) != set(names):
        raise CheckpointError(
            f"the firehose state must hold exactly the arms {sorted(names)}",
            got=sorted(arms) if isinstance(arms, dict) else arms,
            fix="use the sources that the checkpoint was made with, or train anew: andrea fresh",
        )
    for name, arm in arms.items():
        if not isinstance(arm, dict):
            raise _damaged(name, "a JSON object", arm)
    return arms


def _damaged(source: str, must: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"the firehose state of the source {source} must be {must}",
        got=got,
        fix="the file is damaged or belongs to another run: go on from another checkpoint",
    )
