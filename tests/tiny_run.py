"""A project in a folder, small enough to train in seconds: experiment, tokenizer and token files, as the stages make them."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from andrea import btok, tokenizer
from andrea.files import sha256_file, write_atomic, write_json
from andrea.philox import generator
from andrea.tokenizer.exported import from_segments, to_bytes

NAME = "ANDREA-MINI"
SHIPPED = Path(__file__).resolve().parent.parent / "experiments" / "ANDREA-TINY-TRAIN.json"
SEGMENTS = [b" the", b"ing ", b"\n< "]
WORDS = ["what", " the", " sing", "ing ", "cat", " dog", "?", "!", " and", " é"]
CHANGES: dict[str, Any] = {
    "name": NAME,
    "sources": None,
    "tokenizer.segments": len(SEGMENTS),
    "model.d_model": 8,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.context": 16,
    "train.steps": 60,
    "train.horizon": 80,
    "train.warmup_steps": 5,
    "firehose.weights": {"alpha": 0.7, "beta": 0.3},
    "validation": {"every": 10, "blocks": 4},
    "samples": {"every": 20, "tokens": 12, "temperature": 0.8, "top_k": 5, "prompts": ["what the", ""]},
    "checkpoints": {"every": 10, "keep_last": 2, "keep_best": True, "keep_every": 0},
}


def experiment_json(**changes: Any) -> dict[str, Any]:
    """The mini experiment; changes by dotted path, with `__` for the dot: train__steps=10."""
    value = copy.deepcopy(json.loads(SHIPPED.read_text()))
    source = value["sources"]["chitchat"]
    changes = copy.deepcopy(CHANGES) | {"sources": {"alpha": source, "beta": source}} | changes
    for path, new in changes.items():
        *parents, last = path.replace("__", ".").split(".")
        place = value
        for key in parents:
            place = place[key]
        place[last] = new
    return value


def set_experiment(root: Path, **changes: Any) -> Path:
    """(Re)write the experiment file; returns its path."""
    path = root / "experiments" / f"{NAME}-TRAIN.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(experiment_json(**changes), indent=2))
    return path


def make_project(root: Path, **changes: Any) -> Path:
    """Experiment and data under `root`; returns the experiment's path. `alpha` is longer than `beta`."""
    data = root / "data" / NAME
    write_atomic(data / "tokenizer" / "tokenizer.json", to_bytes(from_segments(SEGMENTS).document))
    made = tokenizer.load(data / "tokenizer" / "tokenizer.json")
    (data / "tokens").mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for source, count in (("alpha", 150), ("beta", 12)):
        for split, documents in (("train", count), ("heldout", 12)):
            file = data / "tokens" / f"{source}.{split}.btok"
            texts = [_document(source, split, number) for number in range(documents)]
            arrays = [np.concatenate([[made.bos], made.encode(text)]).astype(np.uint16) for text in texts]
            btok.write(file, arrays, vocab_size=made.vocab_size, tokenizer_sha256=made.sha256)
            sources.setdefault(source, {})[split] = {"file": file.name, "sha256": sha256_file(file)}
    manifest = {"tokenizer_sha256": made.sha256, "vocab_size": made.vocab_size, "sources": sources}
    write_json(data / "tokens" / "manifest.json", manifest)
    return set_experiment(root, **changes)


def _document(source: str, split: str, number: int) -> str:
    draws = generator(7, f"{source}.{split}", number).integers(0, len(WORDS), 24)
    text = "".join(WORDS[draw] for draw in draws)
    return f"> {text[:40]}\n< {text[40:]}"


def run_folder(root: Path) -> Path:
    return root / "runs" / NAME


def promised(root: Path) -> dict[str, str]:
    """What exact resume promises, hashed: model, history without its timings, samples, state."""
    run = run_folder(root)
    history = json.loads((run / f"{NAME}.loss.json").read_text())
    untimed = json.dumps([{key: v for key, v in record.items() if key != "ms"} for record in history])
    files = {
        "model": (root / "results" / NAME / "model.bin").read_bytes(),
        "history": untimed.encode(),
        "samples": (run / f"{NAME}.samples.json").read_bytes(),
        "state": (run / f"{NAME}.state.json").read_bytes(),
    }
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in files.items()}
