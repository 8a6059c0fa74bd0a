"""`andrea fresh`: run and results aside, nothing deleted, never under a trainer's feet."""

from pathlib import Path

import pytest

from andrea.errors import RunError
from andrea.fresh import fresh
from andrea.training.lock import RunLock


def make(root: Path) -> None:
    for folder, file in (("runs", "x.loss.json"), ("results", "model.bin")):
        (root / folder / "ANDREA-X").mkdir(parents=True)
        (root / folder / "ANDREA-X" / file).write_text("precious")


def test_run_and_results_go_aside_again_and_again(tmp_path: Path) -> None:
    """The second time must not overwrite what the first has kept."""
    for expected in ("ANDREA-X.aside", "ANDREA-X.aside.2"):
        make(tmp_path)
        fresh("ANDREA-X", tmp_path)
        assert (tmp_path / "runs" / expected / "x.loss.json").read_text() == "precious"
        assert (tmp_path / "results" / expected / "model.bin").read_text() == "precious"
        assert not (tmp_path / "runs" / "ANDREA-X").exists()


def test_refused_while_a_trainer_holds_the_lock(tmp_path: Path) -> None:
    """The trainer would go on writing into the folder that was put aside."""
    make(tmp_path)
    with RunLock(tmp_path / "runs" / "ANDREA-X"), pytest.raises(RunError, match="one process at a time"):
        fresh("ANDREA-X", tmp_path)
    assert (tmp_path / "results" / "ANDREA-X" / "model.bin").exists()


def test_nothing_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    """A typing error must not look like success."""
    with pytest.raises(RunError, match="ANDREA-Y"):
        fresh("ANDREA-Y", tmp_path)


def test_results_alone_are_enough(tmp_path: Path) -> None:
    """The run folder may have been moved by hand."""
    (tmp_path / "results" / "ANDREA-X").mkdir(parents=True)
    fresh("ANDREA-X", tmp_path)
    assert (tmp_path / "results" / "ANDREA-X.aside").is_dir()
