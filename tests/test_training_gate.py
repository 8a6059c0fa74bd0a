"""The coherence gate in a run: a babbling model is halted, with a checkpoint, at the same step wherever it stopped."""

from pathlib import Path
from typing import Any

import pytest
from bandit_run import HALTED, POLISH, STOPPED, Project
from fake_engine import FakeEngine
from tiny_run import NAME

from andrea import proxy
from andrea.checkpoint import steps_in
from andrea.experiment import load
from andrea.recordfile import read_records
from andrea.training.data import open_data
from andrea.training.gate import known_words


def babbling_from(step: int) -> Any:
    """An opener of engines that write one letter again and again from `step` on."""

    def opened(experiment: Any, _: int) -> FakeEngine:
        engine = FakeEngine(experiment)
        real = engine.generate

        def generate(prompts: Any, tokens: int, choice: Any, seed: int, at: int) -> Any:
            if at >= step:
                return [[39] * tokens for _ in prompts]
            text = list(b"we can walk")
            return [text for _ in real(prompts, tokens, choice, seed, at)]

        engine.generate = generate  # type: ignore[method-assign]
        return engine

    return opened


def test_a_babbling_model_is_halted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds of apostrophes: exit code 76, a checkpoint of that step, the same again, and a way on."""
    monkeypatch.setattr(proxy, "open_engine", babbling_from(20))
    project = Project(tmp_path, samples__every=5)
    assert project.train() == HALTED
    assert len(project.steps()) == 40
    assert 40 in steps_in(project.run / "checkpoints")
    scores = {r["step"]: r["coherence"] for r in read_records(project.run / f"{NAME}.samples.json")}
    assert scores[15] > 60
    assert all(scores[step] < 5 for step in (20, 25, 30, 35, 40))
    log = (project.run / "train.log").read_text()
    assert "halted: samples must not score under 30 of 100 5 times in a row" in log
    assert "at step 40" in log
    assert "5 times in a row" in (project.run / "halted").read_text()
    assert project.train() == HALTED
    assert len(project.steps()) == 40
    assert not (project.root / "results").exists()
    project.edit(samples__every=5, samples__halt_after=0)
    assert project.train() == 0
    assert not (project.run / "halted").exists()


def test_the_gate_counts_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped every day must still be halted, at the same step."""
    monkeypatch.setattr(proxy, "open_engine", babbling_from(20))
    project = Project(tmp_path, samples__every=5)
    for step in (22, 30, 37):
        assert project.train(stop_after=step) == STOPPED
    assert project.train() == HALTED
    assert len(project.steps()) == 40


def test_a_pivot_gives_the_model_a_new_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples start empty there, and so does the count; stopped in between or not."""
    monkeypatch.setattr(proxy, "open_engine", babbling_from(20))
    for name, stops in (("whole", []), ("stopped", [27, 31, 33, 50])):
        project = Project(tmp_path / name, samples__every=5, polish=POLISH)
        for step in stops:
            assert project.train(stop_after=step) == STOPPED
        assert project.train() == HALTED
        assert len(project.steps()) == 55


def test_known_words_come_from_every_source(tmp_path: Path) -> None:
    """A list from the first source alone would call the words of all others made up."""
    project = Project(tmp_path)
    data = open_data(load(project.path), project.root)
    known = known_words(data.train, data.tokenizer)
    assert {"what", "sing", "dog"} <= known
    assert known_words({"beta": data.train["beta"]}, data.tokenizer) <= known
