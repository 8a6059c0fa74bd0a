"""The data recipe's part of an experiment: which source each step draws from, and the polish pivot.

docs/FIREHOSE-BANDIT.md says what every field does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Rule = tuple[bool, str, object]  # holds, must, got


@dataclass(frozen=True)
class RewardSpec:
    """What a pull is worth to the bandit; see andrea/rewards.py."""

    kind: str
    alpha: float
    slow_alpha: float
    threshold: float
    scale: float
    burn_in: int
    forget: float


@dataclass(frozen=True)
class BanditSpec:
    """The policy "bandit"; docs/FIREHOSE-BANDIT.md explains every field."""

    reward: RewardSpec
    exploration: float
    cold_start: int
    focus_sources: tuple[int, int]
    focus_epochs: float
    background: float
    longest_rest: int
    coverage_bonus: float
    coverage_until: float
    floors: Mapping[str, float]
    caps: Mapping[str, float]
    curriculum_warmup_steps: int
    curriculum_warmup_sources: tuple[str, ...]


@dataclass(frozen=True)
class FirehoseSpec:
    policy: str
    weights: Mapping[str, float]
    window_steps: tuple[int, int]
    bandit: BanditSpec | None


@dataclass(frozen=True)
class PolishSpec:
    """The pivot after step `at_step`: new floors and caps, and a schedule of its own that starts there."""

    at_step: int
    floors: Mapping[str, float]
    caps: Mapping[str, float]
    lr: float
    min_lr_ratio: float
    horizon: int


def recipe_rules(firehose: FirehoseSpec, polish: PolishSpec | None, sources: set[str]) -> list[Rule]:
    """What the schema cannot say of the recipe; the weights themselves are checked before."""
    bandit = firehose.bandit
    rules: list[Rule] = [
        (
            firehose.policy != "bandit" or bandit is not None,
            'firehose.bandit must be given with "policy": "bandit"',
            None,
        )
    ]
    if bandit is not None:
        rules += _bandit_rules(bandit, sources)
        rules += _limit_rules("firehose.bandit", bandit.floors, bandit.caps, sources)
        rules += _open_rules("firehose.bandit", bandit.floors, bandit.caps, firehose.weights, sources)
    if bandit is not None and bandit.curriculum_warmup_steps:
        warm = "firehose.bandit.curriculum_warmup_sources"
        rules += _open_rules(warm, bandit.floors, bandit.caps, firehose.weights, bandit.curriculum_warmup_sources)
    if polish is not None:
        rules += _limit_rules("polish", polish.floors, polish.caps, sources)
        rules += _open_rules("polish", polish.floors, polish.caps, firehose.weights, sources)
    return rules


def _bandit_rules(b: BanditSpec, sources: set[str]) -> list[Rule]:
    at, r = "firehose.bandit", b.reward
    unknown = sorted(set(b.curriculum_warmup_sources) - sources)
    return [
        (r.slow_alpha <= r.alpha / 2, f"{at}.reward.slow_alpha must be at most half of alpha", (r.slow_alpha, r.alpha)),
        (
            b.focus_sources[0] <= b.focus_sources[1],
            f"{at}.focus_sources must be [least, most]",
            list(b.focus_sources),
        ),
        (not unknown, f"{at}.curriculum_warmup_sources must be sources of the experiment", unknown),
    ]


def _limit_rules(at: str, floors: Mapping[str, float], caps: Mapping[str, float], sources: set[str]) -> list[Rule]:
    """Floors and caps name exactly the sources, and no floor passes its cap."""
    crossed = {name: (floor, caps[name]) for name, floor in floors.items() if floor > caps.get(name, floor)}
    return [
        (set(floors) == sources, f"{at}.floors must name exactly the experiment's sources", sorted(floors)),
        (set(caps) == sources, f"{at}.caps must name exactly the experiment's sources", sorted(caps)),
        (not crossed, f"{at}: a floor must not pass the cap of its source", crossed),
    ]


def _open_rules(
    at: str,
    floors: Mapping[str, float],
    caps: Mapping[str, float],
    weights: Mapping[str, float],
    sources: Iterable[str],
) -> list[Rule]:
    """One of `sources` can be drawn: its cap is above 0, and so is its weight or its floor."""
    drawn = any(caps.get(s, 0) > 0 and max(weights.get(s, 0), floors.get(s, 0)) > 0 for s in sources)
    return [(drawn, f"{at}: one source must have a cap above 0 and a weight or floor above 0", dict(caps))]
