"""The polish pivot through Snakemake: edited by hand after the run, it reruns training and what follows, and no more."""

import json
from pathlib import Path
from typing import Any

from micro_project import NAME, STEPS, Micro

PIVOT = 8  # of 12 steps; a checkpoint is made at every fourth, and the last two are kept


def polish(value: dict[str, Any]) -> None:
    names = list(value["sources"])
    value["polish"] = {
        "at_step": PIVOT,
        "floors": dict.fromkeys(names, 0.0),
        "caps": dict(zip(names, (1.0, 0.0), strict=True)),
        "lr": 0.001,
        "min_lr_ratio": 1.0,
        "horizon": STEPS,
    }


def test_a_polish_section_written_by_hand(finished: Micro, tmp_path: Path) -> None:
    """Training goes on from the checkpoint at the pivot instead of starting over; the data stages rest."""
    micro = finished.copy(tmp_path / "project")
    old = (micro.results / "model.bin").read_bytes()
    before = json.loads((micro.run_folder / f"{NAME}.loss.json").read_text())
    micro.edit(polish)
    assert micro.planned() == {"train", "archive", "report"}
    micro.grow()
    assert micro.planned() == set()
    assert (micro.results / "model.bin").read_bytes() != old
    history = [r for r in json.loads((micro.run_folder / f"{NAME}.loss.json").read_text()) if "source" in r]
    assert [r["step"] for r in history] == list(range(1, STEPS + 1))
    assert history[:PIVOT] == [r for r in before if "source" in r][:PIVOT]  # timings too: these steps were not repeated
    assert {r["lr"] for r in history[PIVOT:]} == {0.001}
    assert len({r["source"] for r in history[PIVOT:]}) == 1
    assert (micro.results / "archive" / str(PIVOT) / "polish.json").exists()
    assert (micro.run_folder / "superseded" / "1" / "archive" / str(STEPS)).is_dir()
