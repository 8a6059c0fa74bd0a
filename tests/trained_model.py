"""A small model as training publishes it, with random weights: what chat, sample, eval and export are given."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_run import NAME, SEGMENTS, experiment_json

from andrea.checkpoint import Checkpoint, write_model
from andrea.engine import Inference, open_inference
from andrea.engine.layout import count, initial_weights
from andrea.experiment import Experiment
from andrea.files import sha256_file, write_atomic, write_json
from andrea.talk.model import Model, open_model
from andrea.tokenizer.exported import from_segments, to_bytes

STEP = 40
SIZES = {"model__d_model": 24, "model__n_heads": 3, "model__n_layers": 2, "model__context": 32}


def make_model(root: Path, **changes: Any) -> Path:
    """results/ANDREA-MINI under `root`; returns that folder."""
    folder = root / "results" / NAME
    write_atomic(folder / "tokenizer.json", to_bytes(from_segments(SEGMENTS).document))
    experiment = Experiment.from_json(experiment_json(**(SIZES | changes)), "x")
    noise = np.random.default_rng(4).standard_normal(count(experiment.shape)).astype(np.float32)
    weights = initial_weights(experiment.shape, experiment.model.init, 1) * 8 + np.float32(0.1) * noise
    write_model(folder / "model.bin", Checkpoint(STEP, weights, weights, weights))
    sha256 = sha256_file(folder / "tokenizer.json")
    made_with = [{"from_step": 0, "versions": {"numpy": "2", "code": "0123"}}]
    facts = {"tokenizer_sha256": sha256, "fingerprint": "f" * 64, "made_with": made_with}
    write_json(folder / "resolved.json", {"experiment": experiment.to_json(), **facts})
    return folder


def opened(root: Path, threads: int = 1, **changes: Any) -> tuple[Model, Inference]:
    """The model and its CPU engine."""
    model = open_model(str(make_model(root, **changes)))
    engine = open_inference(model.shape, "cpu", "fp32", threads)
    engine.take(model.weights)
    return model, engine


def edit(path: Path, place: str, value: Any) -> None:
    """Set one field of a JSON file, by its dotted path."""
    document = json.loads(path.read_text())
    *parents, last = place.split(".")
    target = document
    for key in parents:
        target = target[key]
    target[last] = value
    path.write_text(json.dumps(document))
