"""The history: exact numbers, and what it knows of itself after a resume."""

import json
from pathlib import Path

import numpy as np

from andrea.recordfile import to_array
from andrea.runfiles import History, step_record


def step(number: int, loss: float = 2.5) -> dict[str, object]:
    return step_record(number, "chitchat", 0, loss, 1.0, 1e-3, 18.23456)


def test_numbers_are_exact_and_odd_ones_are_flagged() -> None:
    """A rounded loss breaks exact resume of the bandit; a bare NaN is not JSON."""
    values = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    for value in values:
        assert np.float32(json.loads(json.dumps(step(1, float(value))["loss"]))).tobytes() == value.tobytes()
    record = step(1, float("nan"))
    assert record["loss"] is None
    assert record["nonfinite"] == {"loss": "nan"}
    assert step(1, float("-inf"))["nonfinite"] == {"loss": "-inf"}
    json.dumps(record, allow_nan=False)
    assert "nonfinite" not in step(1)


def test_history_knows_its_end_and_its_validations(tmp_path: Path) -> None:
    """A gap means that what follows cannot be trusted; the best checkpoint needs the means after a resume."""
    history = History(tmp_path / "x.loss.json")
    history.cut(0)
    history.add_steps([step(1), step(2)])
    history.add_validation(2, {"a": {"nats_per_token": 2.0, "bits_per_byte": 1.0}, "b": {"nats_per_token": 4.0}})
    history.add_steps([step(3)])
    history.file.flush()
    again = History(tmp_path / "x.loss.json")
    assert again.last == 3
    assert again.file.count_until(2) == 3
    again.cut(2)
    assert again.losses == {2: 3.0} == history.losses
    (tmp_path / "x.loss.json").write_bytes(to_array([step(1), step(3)]))
    assert History(tmp_path / "x.loss.json").last == 1
