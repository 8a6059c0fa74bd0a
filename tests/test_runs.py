"""The table of runs: every state by its name, and no file so broken that it hides the others."""

import json
import os
from pathlib import Path

import pytest
from proxy_project import Project
from tiny_run import NAME, run_folder, set_experiment

from andrea.runs import COLUMNS, table
from andrea.training.lock import RunLock


def rows(root: Path) -> dict[str, dict[str, str]]:
    """run -> its cells, cut where the head's columns begin."""
    head, *lines = table(root).splitlines()
    starts = [head.index(column) for column in COLUMNS]
    cells = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines]
    return {cell[0]: dict(zip(COLUMNS, cell, strict=True)) for cell in cells}


def test_states_and_figures(project: Project) -> None:
    """The first look of a morning: what runs, what ended, how far, how well."""
    project.train(stop_after=25)
    row = rows(project.root)[NAME]
    assert (row["state"], row["step"]) == ("stopped", "25 of 60")
    with RunLock(run_folder(project.root)):
        assert rows(project.root)[NAME]["state"].startswith("training now, process ")
    project.train()
    row = rows(project.root)[NAME]
    last = [r for r in project.history() if "validation" in r][-1]["validation"].values()
    assert (row["state"], row["step"]) == ("finished", "60 of 60")
    assert row["loss"] == f"{[r for r in project.history() if 'loss' in r][-1]['loss']:.3f}"
    assert row["bits/byte"] == f"{sum(rates['bits_per_byte'] for rates in last) / len(last):.3f}"
    assert row["age"].endswith(" s") and row["size"].endswith(" MB")
    set_experiment(project.root, train__lr=0.001)
    project.train(stop_after=5)
    states = {run: row["state"] for run, row in rows(project.root).items()}
    (aside,) = set(states) - {NAME}
    assert states == {NAME: "stopped", aside: "put aside"}
    (run_folder(project.root) / "halted").write_text("must\n  got: 12 at step 5: the model babbles\n  fix: x\n")
    assert rows(project.root)[NAME]["state"] == "halted: 12 at step 5: the model babbles"


@pytest.mark.parametrize(
    "text", ["", "{}", "[", '[\n{"step":1', '[\n{"step":1,"loss":"low"}\n]\n', "[\n3\n]\n", "[\n[\n[\n"]
)
def test_a_damaged_history_costs_a_cell(project: Project, text: str) -> None:
    """A crash, an editor and a full disk leave such files; a table that ends in a traceback helps nobody."""
    project.train(stop_after=5)
    (run_folder(project.root) / f"{NAME}.loss.json").write_text(text)
    row = rows(project.root)[NAME]
    assert row["state"].startswith("stopped")
    assert ("damaged" in row["state"]) == (text not in ("", "{}", "[")), (
        "a file without lines holds nothing to be wrong"
    )
    assert row["loss"] == ""


@pytest.mark.parametrize("name", ["fingerprint.json", f"{NAME}.loss.json", "halted", "checkpoints"])
def test_a_folder_or_a_file_where_the_other_belongs(project: Project, name: str) -> None:
    """Neither may hide the rows of the other runs."""
    project.train()
    path = run_folder(project.root) / name
    if path.is_dir():
        path.rename(path.with_name("moved"))
        path.write_text("no folder")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    (project.root / "results" / "ANDREA-ALONE").mkdir()
    found = rows(project.root)
    assert found["ANDREA-ALONE"]["state"] == "results without their run"
    assert found[NAME]["state"]


def test_files_that_lie(project: Project) -> None:
    """JSON of another shape is read like any other outside input."""
    project.train()
    for name in ("fingerprint.json", "versions.json"):
        (run_folder(project.root) / name).write_text(json.dumps([1]))
    (project.root / "results" / NAME / "resolved.json").write_text("{")
    assert "unreadable" in rows(project.root)[NAME]["state"]


def test_no_runs_yet(tmp_path: Path) -> None:
    """An empty table says nothing to a newcomer."""
    assert "train_tiny" in table(tmp_path)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1e400"])
@pytest.mark.parametrize("field", ["loss", "step"])
def test_a_number_that_no_float_holds_costs_a_cell(project: Project, field: str, value: str) -> None:
    """JSON knows no bounds: such a number was an OverflowError."""
    project.train(stop_after=5)
    record = '{"step":5,"loss":2.5}'.replace(
        "2.5" if field == "loss" else "5,", value + ("" if field == "loss" else ",")
    )
    (run_folder(project.root) / f"{NAME}.loss.json").write_text(f"[\n{record}\n]\n")
    assert rows(project.root)[NAME]["state"].startswith("stopped")


@pytest.mark.parametrize("file", [f"{NAME}.loss.json", "halted", "lock", "pid"])
def test_a_pipe_does_not_hang_the_table(project: Project, file: str) -> None:
    """Reading a pipe waits for a writer, who never comes."""
    project.train(stop_after=5)
    path = run_folder(project.root) / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert NAME in rows(project.root)


def test_a_folder_in_place_of_a_lock_hides_nothing(project: Project) -> None:
    """It was a traceback instead of the table."""
    project.train(stop_after=5)
    lock = run_folder(project.root) / "lock"
    lock.unlink()
    lock.mkdir()
    assert rows(project.root)[NAME]["state"] == "stopped"


def test_names_and_reasons_stay_in_their_line(project: Project) -> None:
    """Names of folders and the reason of a halt come from the disk; a terminal obeys what is in them."""
    project.train(stop_after=5)
    (project.root / "runs" / "new\nline\x1b[2J").mkdir()
    (run_folder(project.root) / "halted").write_text("must\n  got: \x1b]0;title\x07\n")
    text = table(project.root)
    assert len(text.splitlines()) == 3 and not set(text) & {"\x1b", "\x07"}
