"""The data recipe's section: what cannot work is refused by name, before any data is fetched."""

import copy
from typing import Any

import pytest
from bandit_run import BANDIT, POLISH
from tiny_run import experiment_json

from andrea.errors import ExperimentError
from andrea.experiment import Experiment


def load(bandit: Any = BANDIT, polish: Any = POLISH, **changes: Any) -> Experiment:
    value = experiment_json(firehose__policy="bandit", firehose__bandit=bandit, polish=polish, **changes)
    return Experiment.from_json(copy.deepcopy(value), "mine.json")


def test_sections_round_trip() -> None:
    """A resolved experiment that differs from its file would hide what was run; null is an answer."""
    for polish in (POLISH, None):
        experiment = load(polish=polish)
        assert Experiment.from_json(experiment.to_json(), "mine.json") == experiment
        assert experiment.section("polish") == polish
        assert experiment.section("firehose")["bandit"] == BANDIT
    assert load(bandit=BANDIT, firehose__weights={"alpha": 0.0, "beta": 1.0}, polish=None).firehose.bandit is not None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"floors": {"alpha": 0.9, "beta": 0.1}, "caps": {"alpha": 0.8, "beta": 1.0}}, "must not pass the cap"),
        ({"floors": {"alpha": 0.9}}, "floors must name exactly"),
        ({"caps": {"alpha": 0.9, "beta": 1.0, "gamma": 1.0}}, "caps must name exactly"),
        ({"caps": {"alpha": 0.0, "beta": 0.0}, "floors": {"alpha": 0.0, "beta": 0.0}}, "a cap above 0"),
        ({"curriculum_warmup_sources": ["gamma"]}, "must be sources of the experiment"),
        ({"curriculum_warmup_sources": []}, "a cap above 0"),
        ({"caps": {"alpha": 0.0, "beta": 1.0}, "floors": {"alpha": 0.0, "beta": 0.0}}, "curriculum_warmup_sources"),
        ({"focus_sources": [3, 2]}, "[least, most]"),
        ({"focus_sources": [0, 2]}, "minimum"),
        ({"cold_start": 0}, "minimum"),
        ({"coverage_until": 0}, "minimum"),
        ({"longest_rest": 0}, "minimum"),
        ({"exploration": -1}, "minimum"),
        ({"reward": BANDIT["reward"] | {"slow_alpha": 0.06}}, "at most half of alpha"),
        ({"reward": BANDIT["reward"] | {"kind": "luck"}}, "is not one of"),
        ({"reward": BANDIT["reward"] | {"scal": 1}}, 'did you mean "scale"'),
    ],
)
def test_a_bandit_that_cannot_work(change: dict[str, Any], told: str) -> None:
    """Each would fail hours later, or train on something else than the file says."""
    with pytest.raises(ExperimentError) as caught:
        load(BANDIT | change)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"floors": {"alpha": 0.9, "beta": 0.1}, "caps": {"alpha": 0.8, "beta": 1.0}}, "must not pass the cap"),
        ({"floors": {"alpha": 0.1}}, "polish.floors must name exactly"),
        ({"floors": {"alpha": 0, "beta": 0}, "caps": {"alpha": 0, "beta": 0}}, "polish: one source must have a cap"),
        ({"at_step": 0}, "minimum"),
        ({"lr": 0}, "minimum"),
        ({"at_stp": 5}, 'did you mean "at_step"'),
    ],
)
def test_a_pivot_that_cannot_work(change: dict[str, Any], told: str) -> None:
    """The mistake would show only at the pivot, days after it was made."""
    with pytest.raises(ExperimentError) as caught:
        load(polish=POLISH | change)
    assert told in str(caught.value)


def test_the_bandit_needs_its_settings_and_fixed_does_not() -> None:
    """Null is for the policy that has none; a section left there while trying the other policy does no harm."""
    with pytest.raises(ExperimentError, match="must be given"):
        load(bandit=None)
    value = experiment_json(firehose__policy="fixed", firehose__bandit=BANDIT)
    assert Experiment.from_json(value, "mine.json").firehose.policy == "fixed"


def test_all_weights_zero() -> None:
    """There would be nothing to draw from under the fixed policy, and nothing for the tokenizer."""
    with pytest.raises(ExperimentError, match="above 0"):
        load(firehose__weights={"alpha": 0.0, "beta": 0.0})
