"""The dashboard's answers: they are what the files say, whatever state the run and its files are in."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from dashboard_kit import NAME, sample, served, start, steps, view, write_run, write_samples

from andrea.cli import find_experiment
from andrea.dashboard.watch import Watch, find_run
from andrea.errors import RunError

RATES = {"alpha": {"nats_per_token": 2.0, "bits_per_byte": 1.5}, "beta": {"nats_per_token": 3.0, "bits_per_byte": 2.5}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of 50 of 60 steps."""
    folder = tmp_path / "runs" / NAME
    records = steps(1, 50)
    records[39]["firehose"] = {"alpha": {"reward": 0.5, "coverage": 0.25}}
    write_run(
        folder,
        [*records, {"step": 50, "validation": RATES}],
        start(),
        {"time": 1e9 + 5, "event": "checkpoint", "step": 50},
    )
    write_samples(folder, sample(20), sample(40, "hello there"))
    return folder


def test_an_answer_is_what_the_files_say(folder: Path) -> None:
    """Every number on the page comes from here."""
    records = steps(1, 50)
    with served(folder) as port:
        answer = view(port)
    facts, charts = answer["facts"], {key: {s["name"]: s for s in series} for key, series in answer["charts"].items()}
    assert (facts["step"], facts["steps"], facts["last_loss"]) == (50, 60, 1.1)
    assert facts["loss"] == pytest.approx(sum(r["loss"] for r in records) / 50)
    assert (facts["bits_per_byte"], facts["nats_per_token"]) == (2.0, 2.5)
    assert facts["tokens_per_second"] == pytest.approx(1000 * 32 / (sum(r["ms"] for r in records) / 50))
    assert facts["memory"] == {"weights": 4000, "m": 2000} and facts["engine"] == "engine cpu"
    raw = charts["loss"]["each step"]
    assert raw["x"] == list(range(1, 51)) and raw["y"] == pytest.approx([r["loss"] for r in records], rel=1e-5)
    assert charts["lr"]["learning rate"]["y"][9] == pytest.approx(1e-4)
    assert charts["bits_per_byte"]["beta"] == {"name": "beta", "kind": "points", "x": [50], "y": [2.5]}
    assert charts["reward"]["alpha"]["y"] == [0.5] and charts["coverage"]["alpha"]["x"] == [40]
    assert charts["share"]["alpha"]["y"][-1] == pytest.approx(34 / 50) and charts["epochs"]["beta"]["y"][-1] == 8.0
    assert charts["coherence"]["mean of the samples"]["x"] == [20, 40]
    assert [mark["kind"] for mark in answer["marks"]] == ["start", "checkpoint"]
    assert answer["samples"][0]["texts"][0]["text"] == "hello there"


def test_a_range_is_asked_for_anew(folder: Path) -> None:
    """Zooming shows points that the whole run has no room for."""
    write_run(folder, steps(1, 5000))
    with served(folder) as port:
        whole, part = view(port, "bins=50"), view(port, "first=2000&last=2050&bins=50&smooth=3")
        beyond = view(port, "first=9000&last=9999&bins=1")
        assert view(port, "first=0&last=0&bins=0")["complete"]
    assert len(whole["charts"]["loss"][0]["x"]) <= 102 and (whole["first"], whole["last"]) == (1, 5000)
    assert part["charts"]["loss"][0]["x"] == list(range(2000, 2051)) and part["smooth"] == 3
    mean = sum(r["loss"] for r in steps(2048, 2050)) / 3
    assert part["charts"]["loss"][1]["y"][-1] == pytest.approx(mean, rel=1e-5)
    assert beyond["first"] == beyond["last"] == 5000


def held(folder: Path) -> int:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


ENDS: list[tuple[list[dict[str, Any]], bool, str, str]] = [
    ([], False, "idle", ""),
    ([start()], True, "training", ""),
    ([start(), {"event": "stopped"}], True, "starting", ""),
    ([start(steps=50)], True, "finishing", ""),
    ([start()], False, "died", "killed"),
    ([start(), {"event": "signal", "step": 9, "name": "SIGTERM"}, {"event": "stopped"}], False, "stopped", "SIGTERM"),
    ([start(), {"event": "halted", "reason": "samples must not <b>"}], False, "halted", "must not <b>"),
    ([start(), {"event": "failed", "reason": "the disk is full"}], False, "failed", "the disk is full"),
    ([start(), {"event": "finished"}], False, "finished", "published"),
]


@pytest.mark.parametrize(("events", "working", "name", "words"), ENDS)
def test_the_state_of_a_run(folder: Path, events: list[dict[str, Any]], working: bool, name: str, words: str) -> None:
    """At 3 a.m. the first question is whether it still trains, and if not, why."""
    write_run(folder, steps(1, 50), *({"time": 1e9} | event for event in events))
    handle = held(folder) if working else None
    with served(folder) as port:
        state = view(port)["state"]
    assert state["name"] == name and words in state["text"]
    if handle is not None:
        os.close(handle)


def test_a_run_that_has_not_begun_goes_and_comes_back(folder: Path) -> None:
    """The page was opened before training, and `andrea fresh` came while it was open."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    with served(folder) as port:
        early = view(port)
        assert (early["state"]["name"], early["facts"]["step"], early["facts"]["loss"]) == ("waiting", 0, None)
        folder.mkdir()
        assert view(port)["state"]["name"] == "waiting"
        folder.rmdir()
        aside.rename(folder)
        assert view(port)["facts"]["step"] == 50
        shutil.rmtree(folder)
        gone = view(port)
        assert gone["state"]["name"] == "gone" and gone["facts"]["step"] == 0 and gone["samples"] == []
        write_run(folder, steps(1, 7), start())
        assert view(port)["facts"]["step"] == 7


def test_damaged_files_are_named_and_the_rest_is_shown(folder: Path) -> None:
    """One bad byte in the samples must not hide the loss."""
    (folder / f"{NAME}.samples.json").write_bytes(b"[\n{}\n]\n")
    (folder / "events.jsonl").write_bytes(b"\xff\xfe\n")
    (folder / "checkpoints").write_bytes(b"no folder")
    (folder / "archive" / "40").mkdir(parents=True)
    (folder / "archive" / "40" / f"{NAME}.samples.json").mkdir()
    os.mkfifo(folder / "lock")
    with served(folder) as port:
        answer = view(port)
    assert answer["facts"]["step"] == 50 and len(answer["troubles"]) == 2
    assert answer["state"]["name"] == "idle"


def test_a_torn_line_among_the_events_is_passed_over(folder: Path) -> None:
    """After a power cut the page would have told for ever how the run stood before it."""
    write_run(folder, steps(1, 50), start())
    with open(folder / "events.jsonl", "a") as file:
        file.write('{"time":1,"ev\n' + json.dumps({"time": 1e9, "event": "finished"}) + "\n")
    with served(folder) as port:
        assert view(port)["state"]["name"] == "finished"


def test_an_event_without_an_end_hides_no_later_one(folder: Path) -> None:
    """Such a line was never passed: the page told for ever how the run stood before it."""
    write_run(folder, steps(1, 50), start())
    with open(folder / "events.jsonl", "a") as file:
        file.write("x" * 3_000_000 + "\n" + json.dumps({"time": 1e9, "event": "finished"}) + "\n")
    with served(folder) as port:
        answer = view(port)
        assert answer["state"]["name"] == "finished" and "which is passed over" in answer["troubles"][0]
        write_run(folder, steps(1, 50), start())
        assert view(port)["troubles"] == []


def test_checkpoints_of_a_long_run_are_thinned(folder: Path) -> None:
    """Two thousand marks in every answer, where a screen has room for a hundred."""
    saved = [{"time": 1e9 + n, "event": "checkpoint", "step": n} for n in range(1, 1000)]
    write_run(folder, steps(1, 1000), start(), *saved, {"time": 1e9, "event": "pivot", "step": 700})
    with served(folder) as port:
        kinds = [mark["kind"] for mark in view(port)["marks"]]
        assert 100 < kinds.count("checkpoint") <= 150 and kinds.count("start") == kinds.count("pivot") == 1
        assert len(view(port, "first=500&last=600")["marks"]) == 102


def test_absurd_numbers_are_numbers(folder: Path) -> None:
    """Sums and products of what a file may hold must not become infinite: JSON has no word for it."""
    absurd = [step | {"loss": 9e99, "norm": -9e99, "lr": 1e-320, "ms": 0.0} for step in steps(1, 50)]
    begun = start(steps=2**53, tokens=2**53, epochs={"alpha": 9e99}) | {"time": -9e99}
    write_run(folder, absurd, begun, {"time": 9e99, "event": "checkpoint", "step": 1})
    handle = held(folder)
    with served(folder) as port:
        answer = view(port)
    os.close(handle)
    assert answer["facts"]["step"] == 50 and answer["facts"]["seconds_left"] > 1e99 and answer["troubles"] == []


def test_samples_of_all_archives(folder: Path) -> None:
    """A polish pivot empties the run's samples; what came before stands in its archive."""
    for step, records in ((20, [sample(10), sample(20)]), (60, [sample(40, "again"), sample(60, "the last")])):
        archive = folder / "archive" / str(step)
        archive.mkdir(parents=True)
        write_samples(archive, *records)
    write_samples(folder, sample(40))
    with served(folder) as port:
        answer = view(port)
        assert [r["step"] for r in answer["samples"]] == [60, 40, 20]
        shutil.rmtree(folder / "archive")
        assert [r["step"] for r in view(port)["samples"]] == [40]


def test_which_run_is_meant(tmp_path: Path) -> None:
    """A typing error must not wait for a run for ever; a run may be watched before it begins, or under another name."""
    experiment = tmp_path / "experiments" / f"{NAME}-TRAIN.json"
    with pytest.raises(RunError, match="experiment or a run folder") as error:
        find_run("mini", experiment, tmp_path)
    assert "none yet" in error.value.fix
    experiment.parent.mkdir()
    experiment.touch()
    assert find_run("mini", experiment, tmp_path) == (tmp_path / "runs" / NAME, NAME)
    elsewhere = tmp_path / "kept" / "old"
    write_run(elsewhere, steps(1, 3))
    assert find_run(str(elsewhere), Path("experiments/OLD.json"), tmp_path) == (elsewhere, NAME)
    Watch(elsewhere, NAME).refresh()


@pytest.mark.parametrize("ms", [5e-324, 1e-300, 1e-310])
def test_an_instant_step_is_no_error(folder: Path, ms: float) -> None:
    """Tokens over such a time are infinite, and the answer was status 500 with a traceback in the terminal."""
    records = steps(1, 3)
    for record in records:
        record["ms"] = ms
    write_run(folder, records, start())
    with served(folder) as port:
        assert view(port)["facts"]["tokens_per_second"] > 0


def test_a_round_of_samples_is_bounded(folder: Path) -> None:
    """A file with one round of thousands of texts grew memory and answers without end; its mean still counts them all."""
    write_samples(folder, *(sample(20, f"text {n}") for n in range(300)))
    watch = Watch(folder, NAME)
    watch.refresh()
    assert len(watch.samples().texts[20]) == 100 and watch.samples().scores == {20: 50.0}


@pytest.mark.parametrize("target", ["../..", "..", f"runs/{NAME}/{NAME}.loss.json"])
def test_what_is_no_run_is_not_watched(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page waited for a run "..", or for one named like a history, which can never come."""
    root = folder.parent.parent
    (root / "below" / "here").mkdir(parents=True)
    monkeypatch.chdir(root / "below" / "here" if ".." in target else root)
    Path("runs").mkdir(exist_ok=True)
    with pytest.raises(RunError, match="needs an experiment or a run folder"):
        find_run(target, find_experiment(target), Path())
