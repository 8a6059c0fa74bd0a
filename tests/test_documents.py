"""The documents agree with the code: files that they name are there, and the table of models is what the code counts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_run import NAME, make_project

from andrea.batches import Batches
from andrea.btok import open_btok
from andrea.cli import main
from andrea.engine import open_engine
from andrea.engine.layout import count, initial_weights
from andrea.experiment import load
from andrea.export.card import USE
from andrea.schedule import lr

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("ANDREA", "ARCHITECTURE", "FIREHOSE-BANDIT", "SPEED")),
]
DOCUMENTS += ["kernels/README.md", "benchmarks/README.md"]
OF_THE_TREE = r"(?:andrea|benchmarks|docs|kernels|locks|scripts|tests|workflow)/[\w./-]+\.\w+"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_a_document_names_are_there(name: str) -> None:
    """A renamed module left its old name in the reading order."""
    named = set(re.findall(OF_THE_TREE, (ROOT / name).read_text()))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["TINY", "12M", "120M"])
def test_the_table_of_models_is_what_the_code_counts(name: str) -> None:
    """An edit of an experiment left the document with another model."""
    e = load(ROOT / f"experiments/ANDREA-{name}-TRAIN.json")
    m = e.model
    row = [
        f"ANDREA-{name}",
        *(f"{n:,}" for n in (e.vocab_size, m.d_model, m.n_heads, m.n_layers, m.context, count(e.shape))),
    ]
    assert f"| {' | '.join(row)} |" in (ROOT / "docs/ANDREA.md").read_text()


def test_every_benchmark_is_told_how_to_repeat() -> None:
    """A benchmark was added, and nobody could say how its figures had come about."""
    text = (ROOT / "benchmarks/README.md").read_text()
    programs = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - {"svg.py", "rows.py"}
    assert [name for name in sorted(programs) if name not in text] == []


def test_commands_that_a_document_names_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A command had got another name, and who copied it from a document was told that it does not exist."""
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"^    (\w+)\b", capsys.readouterr().out, re.MULTILINE))
    text = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    named = set(re.findall(r"(?:bin/|`)andrea (\w+)", text))
    assert {"show", "chat", "sample", "eval", "export"} <= named <= known


def test_the_first_steps_run_as_they_stand(tmp_path: Path) -> None:
    """Code in a document breaks unseen when a signature changes; its losses are those of the fast engine."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/ANDREA.md").read_text(), re.DOTALL)
    for shipped, small in (("ANDREA-TINY", NAME), ("chitchat", "alpha")):
        assert shipped in code
        code = code.replace(shipped, small)
    path = make_project(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    printed = [float(line.split("]")[0].strip("[ ")) for line in done.stdout.splitlines()]
    e = load(path)
    tokens = open_btok(tmp_path / f"data/{NAME}/tokens/alpha.train.btok")
    batches = Batches({"alpha": tokens}, e.shape.context, e.train.batch_size, 1)
    engine = open_engine(e, threads=1)
    weights = initial_weights(e.shape, e.model.init, 1)
    engine.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    wanted, _ = engine.run(batches.draw_steps(["alpha"] * 6, {}), np.array([lr(t, e.train) for t in range(6)]))
    assert printed == pytest.approx(wanted, rel=1e-6), done.stderr


def test_the_example_for_transformers_is_the_model_cards() -> None:
    """The card's own is run by a test; the document's must not drift away from it."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example.replace("tiny-model", "FOLDER") in USE
