"""events.jsonl: every end of a run is told, whatever ends it, and nothing but the telling depends on it."""

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from bandit_run import PIVOT, POLISH
from bandit_run import Project as BanditProject
from fake_engine import FakeEngine
from proxy_project import STOPPED, Project
from tiny_run import NAME, run_folder

from andrea.errors import EngineError
from andrea.training.events import EVENTS, Events


def events(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder(root) / EVENTS).read_text().splitlines()]


def test_a_run_tells_what_happens_to_it(project: Project) -> None:
    """The dashboard knew neither how long the run would be nor why it had stopped."""
    project.signal_at(13, signal.SIGUSR1)
    assert project.train(stop_after=25) == STOPPED
    project.signal_at(33, signal.SIGTERM)
    assert project.train() == STOPPED
    project.setup = lambda engine: None
    assert project.train() == 0
    found = events(project.root)
    assert [e["event"] for e in found if e["event"] not in ("checkpoint", "signal")] == ["start", "stopped"] * 2 + [
        "start",
        "finished",
    ]
    starts = [e for e in found if e["event"] == "start"]
    assert [e["step"] for e in starts][:2] == [0, 25] and starts[0]["steps"] == 60
    assert (starts[0]["engine"], starts[0]["tokens"]) == ("fake engine", 4 * 16) and set(starts[0]["epochs"]) == {
        "alpha",
        "beta",
    }
    assert [e["name"] for e in found if e["event"] == "signal"] == ["SIGUSR1", "SIGTERM"]
    saved = [e["step"] for e in found if e["event"] == "checkpoint"]
    assert saved == sorted(set(saved)) and {0, 10, 20, 25, 30, 40, 50, 60} <= set(saved)
    assert all(a["time"] <= b["time"] for a, b in itertools.pairwise(found))


def test_an_error_is_told(project: Project) -> None:
    """A loss that is not finite ended the run in the night; the page said that it had died without a word."""

    def spoil(engine: FakeEngine) -> None:
        engine.bad_step = 17

    project.setup = spoil
    with pytest.raises(EngineError):
        project.train()
    assert events(project.root)[-1]["event"] == "failed" and "step 17" in events(project.root)[-1]["reason"]


def test_a_torn_line_ends_before_the_next_begins(tmp_path: Path) -> None:
    """After a power cut the first line of the new start would be lost with the torn one."""
    (tmp_path / EVENTS).write_text('{"event":"start","ti')
    with Events(tmp_path / EVENTS) as log:
        log.note("checkpoint", step=3)
    first, *others = (tmp_path / EVENTS).read_text().splitlines()
    assert first == '{"event":"start","ti' and [json.loads(line)["event"] for line in others] == [
        "checkpoint",
        "stopped",
    ]


def test_windows_tell_what_the_bandit_has_learned(tmp_path: Path) -> None:
    """The curves of reward and coverage; at the last step of each window, and after a stop in its middle too."""
    whole, stopped = (
        BanditProject(tmp_path / name, polish=POLISH, firehose__window_steps=[7, 9]) for name in ("whole", "stopped")
    )
    assert whole.train() == 0
    for step in (3, 17, 18, PIVOT):
        assert stopped.train(stop_after=step) == STOPPED
    assert stopped.train() == 0
    steps = whole.steps()
    ends = [a["step"] for a, b in itertools.pairwise(steps) if a["window"] != b["window"]]
    told = {r["step"]: r["firehose"] for r in steps if "firehose" in r}
    assert len(ends) > 3 and set(ends) - {PIVOT} <= set(told) <= {*ends, len(steps)}  # the pivot cuts a window short
    assert told == {r["step"]: r["firehose"] for r in stopped.steps() if "firehose" in r}
    assert any(event.items() >= {"event": "pivot", "step": PIVOT}.items() for event in events(stopped.root))
    again = BanditProject(tmp_path / "again", polish=POLISH, firehose__window_steps=[7, 9])
    end = next(step for step, rows in told.items() if any(row["reward"] for row in rows.values()))
    assert again.train(stop_after=end) == STOPPED
    arms = json.loads((again.run / f"{NAME}.state.json").read_text())["firehose"]["arms"]
    for source, row in told[end].items():
        assert row["reward"] == pytest.approx(arms[source]["reward"], rel=1e-4) and 0 < row["coverage"] <= 1
