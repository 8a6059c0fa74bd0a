"""`andrea firehose`: the table and the batch viewer show what training did, nothing else."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bandit_run import PIVOT, POLISH, Project
from fake_engine import FakeEngine
from tiny_run import NAME

from andrea import proxy
from andrea.audit import NEXT, arms_table, open_audit, step_view
from andrea.checkpoint import bin_path, state_path
from andrea.errors import RunError
from andrea.tokenizer import load


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "open_engine", lambda experiment, threads: FakeEngine(experiment))


def table(text: str) -> dict[str, dict[str, str]]:
    """Rows of an arms table by source, cells by column."""
    _, header, *lines = text.splitlines()
    return {line.split()[0]: dict(zip(header.split(), line.split(), strict=True)) for line in lines}


def test_the_table_agrees_with_the_history(tmp_path: Path) -> None:
    """By name, by run folder and for the state of any checkpoint."""
    project = Project(tmp_path, polish=POLISH)
    project.train(stop_after=50)
    drawn = Counter(r["source"] for r in project.steps())
    for target in ("mini", str(project.run)):
        rows = table(arms_table(open_audit(target, project.path, project.root)))
        assert {name: int(row["pulls"]) for name, row in rows.items()} == drawn
        assert sum(float(row["probability"]) for row in rows.values()) == pytest.approx(1, abs=2e-3)
        assert rows["beta"]["floor"] == "0.900"
    early = state_path(bin_path(project.run / "checkpoints", 10))
    text = arms_table(open_audit(str(early), project.path, project.root))
    rows = table(text)
    assert "step 10;" in text
    assert rows["alpha"]["pulls"] == "10"
    assert rows["beta"]["focus"] == "off"  # the curriculum warm-up
    before = state_path(bin_path(project.run / "checkpoints", PIVOT))
    assert table(arms_table(open_audit(str(before), project.path, project.root)))["beta"]["floor"] == "0.100"


def test_the_viewer_shows_what_the_engine_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that computes the position anew in its own way can be wrong without anyone noticing."""
    given: dict[int, list[list[int]]] = {}

    class Watched(FakeEngine):
        def run(self, batches: Any, lrs: Any) -> Any:
            taken = list(batches)
            given.update({self.step + 1 + i: batch.tolist() for i, batch in enumerate(taken)})
            return super().run(iter(taken), lrs)

    monkeypatch.setattr(proxy, "open_engine", lambda experiment, threads: Watched(experiment))
    project = Project(tmp_path)
    project.train()
    audited = open_audit("mini", project.path, project.root)
    tokenizer = load(project.root / "data" / NAME / "tokenizer" / "tokenizer.json")
    for step in (1, 13, 14, 60):
        text = step_view(audited, step, 10**6)
        shown = re.split(r"\n\nrow \d+: [^\n]+\n", text)[1:]
        assert [row.replace(NEXT, "") for row in shown] == [tokenizer.decode(ids) for ids in given[step]]
        assert f"step {step}: {project.steps()[step - 1]['source']}" in text
        bos = sum(ids[1:].count(tokenizer.bos) for ids in given[step])
        assert text.count(NEXT) == bos
    assert step_view(audited, 1, 5).endswith("...")


def test_what_cannot_be_shown_is_told(tmp_path: Path) -> None:
    """A step of the future, a state of another experiment, a folder that is no run."""
    project = Project(tmp_path)
    project.train(stop_after=20)
    audited = open_audit("mini", project.path, project.root)
    with pytest.raises(RunError, match="step 21 must be on record"):
        step_view(audited, 21, 100)
    with pytest.raises(RunError, match="must lie in a run folder"):
        open_audit(str(tmp_path / "data"), project.path, project.root)
    state = project.run / f"{NAME}.state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"fingerprint": "0" * 64}))
    with pytest.raises(RunError, match="must belong to"):
        open_audit("mini", project.path, project.root)


def test_the_fixed_policy_has_a_table_too(tmp_path: Path) -> None:
    """Pulls and epochs are of use without a bandit."""
    project = Project(tmp_path, firehose__policy="fixed")
    project.train(stop_after=20)
    rows = table(arms_table(open_audit("mini", project.path, project.root)))
    assert int(rows["alpha"]["pulls"]) + int(rows["beta"]["pulls"]) == 20
