"""The question before a long run: only to a person, only when it is long, and an honest answer counts."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from tiny_run import NAME, make_project

from andrea import consent
from andrea.errors import RunError
from andrea.experiment import Experiment, load
from andrea.fingerprint import fingerprint
from andrea.training.runfolder import stands_at

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def slow() -> Experiment:
    """ANDREA-12M on the CPU: days."""
    e = load(ROOT / "experiments" / "ANDREA-12M-TRAIN.json")
    return dataclasses.replace(e, train=dataclasses.replace(e.train, engine="cpu", precision="fp32"))


def answering(monkeypatch: pytest.MonkeyPatch, answer: str | None, terminal: bool = True) -> list[str]:
    """The questions that were asked; None is Ctrl-C."""
    asked: list[str] = []

    def say(question: str) -> str:
        asked.append(question)
        if answer is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr("builtins.input", say)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    return asked


@pytest.mark.parametrize(("answer", "goes_on"), [("", True), ("Y", True), ("yes ", True), ("n", False), (None, False)])
def test_days_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: Experiment, answer: str | None, goes_on: bool
) -> None:
    """Somebody typed 12m without a GPU and found out the next morning."""
    asked = answering(monkeypatch, answer)
    if goes_on:
        consent.ask([slow], tmp_path)
    else:
        with pytest.raises(RunError, match="must be what you want"):
            consent.ask([slow], tmp_path)
    assert len(asked) == 1 and "days" in asked[0]


def test_nobody_is_asked_in_vain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: Experiment) -> None:
    """A question that no one can answer would hang a cluster job; one before minutes of work is a nuisance."""
    asked = answering(monkeypatch, "n", terminal=False)
    consent.ask([slow], tmp_path)
    answering(monkeypatch, "n")
    consent.ask([load(ROOT / "experiments" / "ANDREA-TINY-TRAIN.json")], tmp_path)
    assert asked == []


def test_only_what_is_left_counts(tmp_path: Path) -> None:
    """A run of two days that stops an hour before its end must not ask for two days again; a foreign state tells nothing."""
    experiment = load(make_project(tmp_path))
    assert stands_at(experiment, tmp_path) == 0
    state = tmp_path / "runs" / NAME / f"{NAME}.state.json"
    state.parent.mkdir(parents=True)
    manifest = json.loads((tmp_path / "data" / NAME / "tokens" / "manifest.json").read_text())
    mark = fingerprint(experiment, manifest, manifest["tokenizer_sha256"]).digest
    for found, step in ((mark, 30), ("another", 0)):
        state.write_text(json.dumps({"fingerprint": found, "step": 30}))
        assert stands_at(experiment, tmp_path) == step
        assert f"{60 - step} steps to go" in consent.outlooks([experiment], tmp_path)[0]
    for text in ('{"tokenizer_sha256": 3}', "{"):
        (tmp_path / "data" / NAME / "tokens" / "manifest.json").write_text(text)
        assert stands_at(experiment, tmp_path) == 0


def test_a_closed_standard_input_is_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: Experiment) -> None:
    """It is None in Python, and a job without one died of an AttributeError."""
    asked = answering(monkeypatch, "n")
    monkeypatch.setattr(sys, "stdin", None)
    consent.ask([slow], tmp_path)
    assert asked == []


def test_an_answer_that_is_no_text_is_a_no(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: Experiment) -> None:
    """Bytes that are no UTF-8, typed by accident, were a traceback."""
    answering(monkeypatch, "")
    monkeypatch.setattr("builtins.input", lambda _: b"\xff".decode())
    with pytest.raises(RunError, match="must be what you want"):
        consent.ask([slow], tmp_path)
