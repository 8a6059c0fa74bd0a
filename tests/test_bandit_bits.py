"""Plans, batches and state as recorded bits: whoever makes them faster must not make them others."""

import hashlib
import json

import numpy as np
from bandit_kit import FALL, LEARNING, recipe

from andrea.bandit import Bandit
from andrea.batches import Batches
from andrea.btok import Btok
from andrea.recipe import RewardSpec

RECORDED = {
    "learning": "27c4747c09d2bf8135693cfad47b3c102c6367a281e9191d954dcd647564d311",
    "fall": "4b6380c91e7c29344853c77f50fe8426699d8221cadb9284f7dd8007eea798d7",
}


def corpus() -> Batches:
    """Sixteen sources from 20,000 tokens down to one block, in documents of 1 to 79 tokens."""
    draws, files = np.random.default_rng(1), {}
    for i in range(16):
        size = max(33, 20_000 // 2**i)
        ends = np.cumsum(draws.integers(1, 80, size))
        offsets = np.concatenate([[0], ends[ends < size], [size]]).astype(np.int64)
        files[f"source-{i:02}"] = Btok(draws.integers(0, 500, size).astype(np.uint16), offsets, 500, "0" * 64)
    return Batches(files, 32, 8, seed=5)


def digest(reward: RewardSpec) -> str:
    """Of 150 windows: their sources, all ids of their batches, and the state after each."""
    batches = corpus()
    changes = {"curriculum_warmup_steps": 300, "curriculum_warmup_sources": ("source-01", "source-04", "source-12")}
    spec = recipe(batches.document_counts(), reward=reward, focus_sources=(1, 4), longest_rest=3, **changes)
    bandit, draws, found, start = Bandit(spec, 7, batches), np.random.default_rng(2), hashlib.sha256(), 0
    for number in range(150):
        window = bandit.plan(number, start)
        pulls = {name: arm.pulls for name, arm in bandit.arms.items()}
        found.update(json.dumps(window.sources).encode())
        for ids in batches.draw_steps(window.sources, pulls):
            found.update(ids.astype("<i4").tobytes())
        losses = [2 + 0.5 * draws.random() + 1 / (1 + pulls[name]) for name in window.sources]
        bandit.credit(window, losses)
        found.update(json.dumps(bandit.state()).encode())
        start += len(window.sources)
    return found.hexdigest()


def test_a_run_of_the_bandit_has_the_recorded_bits() -> None:
    """Guards resume across versions: a faster plan that differs in one draw would train another model."""
    assert {kind: digest(reward) for kind, reward in (("learning", LEARNING), ("fall", FALL))} == RECORDED
