"""Fingerprints: what makes a new run, what does not, and how a difference is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from andrea.experiment import Experiment
from andrea.fingerprint import Fingerprint, differences, fingerprint

TINY = Path(__file__).resolve().parent.parent / "experiments" / "ANDREA-TINY-TRAIN.json"


def mark(*changes: tuple[str, str, Any], tokens: str = "t", tokenizer: str = "z") -> Fingerprint:
    value = json.loads(TINY.read_text())
    for section, key, new in changes:
        value[section][key] = new
    experiment = Experiment.from_json(value, TINY)
    split = {"train": {"sha256": tokens}, "heldout": {"sha256": "h"}}
    return fingerprint(experiment, {"sources": dict.fromkeys(experiment.sources, split)}, tokenizer)


@pytest.mark.parametrize(
    "change",
    [
        ("train", "lr", 0.004),
        ("train", "seed", 2),
        ("train", "horizon", 6000),
        ("train", "partitions", 4),
        ("model", "n_layers", 3),
        ("firehose", "window_steps", [7, 41]),
        ("firehose", "weights", {"chitchat": 0.8, "synthetic-chat": 0.2}),
    ],
)
def test_what_changes_the_steps_changes_the_fingerprint(change: tuple[str, str, Any]) -> None:
    """A run resumed under another learning rate or mix would be neither of the two."""
    assert mark(change).digest != mark().digest


def test_engine_and_recompute_do_too() -> None:
    """docs/ANDREA.md promises a run of its own for each, and the CUDA engine relies on never meeting a state of the CPU's."""
    cuda, again = ("train", "engine", "cuda"), ("train", "recompute", True)
    assert len({mark().digest, mark(cuda).digest, mark(cuda, again).digest}) == 3


def test_so_do_tokens_and_tokenizer() -> None:
    """The same settings on other data are another run."""
    assert len({mark().digest, mark(tokens="u").digest, mark(tokenizer="y").digest}) == 3


@pytest.mark.parametrize(
    "change",
    [
        ("train", "steps", 6000),
        ("validation", "every", 100),
        ("samples", "prompts", ["Hi"]),
        ("checkpoints", "keep_last", 3),
        ("firehose", "weights", {"synthetic-chat": 0.1, "chitchat": 0.9}),
    ],
)
def test_what_does_not_change_the_steps_leaves_it(change: tuple[str, str, Any]) -> None:
    """Raising steps must go on with the run, and a new prompt must not restart weeks of training."""
    assert mark(change).digest == mark().digest


def test_differences_name_the_setting_and_both_values() -> None:
    """The line that explains why a run was put aside must say what the user changed."""
    told = differences(mark(("train", "lr", 0.005)).parts, mark(("train", "lr", 0.004), tokens="u" * 64).parts)
    assert "train.lr 0.005 -> 0.004" in told
    assert "tokens.chitchat.train t -> uuuuuuuuuuuu..." in told
    assert "heldout" not in told
