"""Held-out blocks and rates: the same blocks all run long, bytes counted by target, and the units."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_batches import T, tokens

from andrea.errors import DataError
from andrea.evaluate import HeldOut, evaluate, hold_out

BYTES = [b"x"] * 256 + [b""] + [b"xyz"] * 99_743


class Recorder:
    """Costs 1 nat a target; remembers the groups it was given."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def evaluate(self, blocks: Any) -> Any:
        self.groups.append(len(blocks))
        return np.full(len(blocks), float(T))


def test_blocks_are_spread_evenly_and_never_twice(tmp_path: Path) -> None:
    """The first blocks of a file are its first documents only: a bad picture of a sorted source."""
    held = hold_out("a", tokens(tmp_path, "a", [81 * T]), T, 4, BYTES)
    starts = (held.blocks[:, 1] - 257 - 1) // T
    assert starts.tolist() == [10, 30, 50, 70]
    few = hold_out("a", tokens(tmp_path, "b", [3 * T + 1]), T, 64, BYTES)
    assert len(few.blocks) == 3


def test_bytes_are_those_of_the_targets(tmp_path: Path) -> None:
    """The first token of a block is context only, and BOS stands for no bytes."""
    held = hold_out("a", tokens(tmp_path, "a", [5, 12]), T, 9, BYTES)
    assert held.tokens == 16
    assert held.bytes == 3 * (16 - 1)  # one BOS among the targets, the other is the very first token


def test_units() -> None:
    """Nats and bits, tokens and bytes are easily confused: 16 targets, 40 bytes, 32 nats."""
    rates = HeldOut(np.zeros((2, T + 1), np.int32), 40).rates(32.0)
    assert rates == {"nats_per_token": 2.0, "bits_per_byte": pytest.approx(32 / math.log(2) / 40)}


def test_groups_are_always_the_same_and_a_stop_comes_between_them() -> None:
    """Another grouping may change the last bits on a GPU; a stop must not leave half a result."""
    held = {"a": HeldOut(np.zeros((7, T + 1), np.int32), 50), "b": HeldOut(np.zeros((2, T + 1), np.int32), 50)}
    engine: Any = Recorder()
    assert evaluate(engine, held, 3, lambda: False) == {name: h.rates(h.tokens) for name, h in held.items()}
    assert engine.groups == [3, 3, 1, 2]
    again: Any = Recorder()
    assert evaluate(again, held, 3, lambda: len(again.groups) == 2) is None
    assert again.groups == [3, 3]


def test_too_little_held_out_text_is_an_error_that_names_the_source(tmp_path: Path) -> None:
    """A small folder of the user's own gives few held-out documents."""
    with pytest.raises(DataError, match="the held-out text of mine"):
        hold_out("mine", tokens(tmp_path, "a", [4]), T, 4, BYTES)
