"""The program that tells what a run costs beyond its steps: every part is counted once, and nothing of what is not the loop."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_engine import FakeEngine
from tiny_run import make_project


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend("benchmarks")
    for name in ("loop_overhead", "rows"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # afterwards both are gone again
        del sys.modules[name]
    return importlib.import_module("loop_overhead")


def test_parts_of_the_loop(overhead: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checkpoint, the final evaluation and the last wait for the disk are no part of it."""
    monkeypatch.setattr(overhead, "open_engine", lambda experiment, _threads: FakeEngine(experiment))
    watch, seconds = overhead.trained(make_project(tmp_path), tmp_path)
    engine = watch.engine
    assert watch.calls["run"] == len(engine.calls)
    assert 0 < sum(watch.seconds.values()) < seconds
    rows = list(overhead.table(watch, 1e3 * seconds / engine.step, 0.0, engine.step))
    assert len(rows) == 1 + len(overhead.CALLS) + 4
    parts = [float(row.split("|")[3]) for row in rows[1:]]
    assert sum(parts[:-1]) == pytest.approx(parts[-1], abs=1e-3)
