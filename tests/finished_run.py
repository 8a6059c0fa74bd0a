"""The files of a small finished run, written by hand: what archive and report read, without the minutes of a real run."""

import copy
import json
import struct
from pathlib import Path
from typing import Any

from andrea.experiment import Experiment

ROOT = Path(__file__).resolve().parent.parent
STEPS = 40


def finished_run(root: Path, recipe: dict[str, Any] | None = None, **train: Any) -> Experiment:
    """Write data, runs and results of ANDREA-TINY cut to a few steps under `root`; returns the experiment.

    `recipe` replaces whole sections.
    """
    value = json.loads((ROOT / "experiments" / "ANDREA-TINY-TRAIN.json").read_text())
    value["train"] |= {"steps": STEPS, **train}
    value |= recipe or {}
    experiment = Experiment.from_json(copy.deepcopy(value), "experiments/ANDREA-TINY-TRAIN.json")
    _data(root / "data" / experiment.name, experiment)
    _run(root / "runs" / experiment.name, experiment)
    _results(root / "results" / experiment.name, experiment)
    return experiment


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def records(items: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]\n"


def _data(folder: Path, experiment: Experiment) -> None:
    split = {"file": "x", "sha256": "0" * 64, "documents": 7, "bytes": 5000}
    text = {
        "dataset": "set",
        "bucket": "all",
        "revision": "r1",
        "licence": "MIT",
        "provenance": "written by hand",
        "in": {"documents": 10, "characters": 9000},
        "dropped": {"too short": 3, "too long": 0},
        "train": split,
        "heldout": split,
    }
    put(folder / "megachat" / "manifest.json", {"sources": dict.fromkeys(experiment.sources, text)})
    token_split = {"file": "x", "sha256": "0" * 64, "documents": 7, "tokens": 2048, "bytes": 4096}
    tokens = dict.fromkeys(("train", "heldout"), token_split)
    put(folder / "tokens" / "manifest.json", {"sources": dict.fromkeys(experiment.sources, tokens)})
    put(folder / "tokenizer" / "report.json", {"kind": "harris", "vocab_size": 513, "overlap": {"words": 0.5}})


def _run(folder: Path, experiment: Experiment) -> None:
    source, steps, name = sorted(experiment.sources)[0], experiment.train.steps, experiment.name
    history = [
        {"step": n, "source": source, "window": 0, "loss": 6 / n, "norm": 1.5, "lr": 0.001, "ms": 2.0}
        for n in range(1, steps + 1)
    ]
    if experiment.firehose.policy == "bandit":
        history[9]["firehose"] = {key: {"reward": 0.25, "coverage": 0.5} for key in experiment.sources}
    rates = {"nats_per_token": 2.0, "bits_per_byte": 1.25}
    history.append({"step": steps, "validation": {source: rates}})
    folder.mkdir(parents=True)
    (folder / f"{name}.loss.json").write_text(records(history))
    archive = folder / "archive" / str(steps)
    archive.mkdir(parents=True)
    sample = {"step": steps, "prompt": "Hello", "text": "Hi there", "raw": "Hi there", "tokens": 3}
    (archive / f"{name}.samples.json").write_text(records([sample]))
    arm = {"reward": 12.5, "documents": 7, "seen": "Pw=="}  # six of seven
    state = {"step": steps, "firehose": {"policy": "bandit", "arms": dict.fromkeys(experiment.sources, arm)}}
    put(archive / f"{name}.state.json", state)
    said = [f"{name}: new run, step 0 of {steps}", f"{name} 7/{steps} steps  loss 1.0", "step 20: held-out"]
    (folder / "train.log").write_text("".join(f"2026-11-29 18:00:00  {line}\n" for line in said))
    result = {"tokens": 10, "bytes": 20, "model": rates, "bigram": {"nats_per_token": 3.0, "bits_per_byte": 1.875}}
    evaluation = {"step": steps, "sources": {source: result}, "mean": result}
    put(archive / "final_evaluation.json", evaluation)


def _results(folder: Path, experiment: Experiment) -> None:
    made_with = [{"from_step": 0, "versions": {"numpy": "2.4.6", "code": "0123456789ab"}}]
    put(folder / "resolved.json", {"experiment": experiment.to_json(), "made_with": made_with})
    put(folder / "tokenizer.json", {"model": {}})
    write_model(folder / "model.bin", experiment.train.steps)


def write_model(path: Path, step: int, value: float = 0.5) -> None:
    """A model of two parameters in the checkpoint format."""
    path.write_bytes(struct.pack("<ii6f", step, 2, *[value] * 6))
