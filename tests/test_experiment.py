"""Experiments: shipped files load, and every kind of mistake is refused by name."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from andrea.errors import ExperimentError
from andrea.experiment import Experiment, canonical, load

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = sorted((ROOT / "experiments").glob("ANDREA-*-TRAIN.json"))
TINY = ROOT / "experiments" / "ANDREA-TINY-TRAIN.json"


def changed(path: str, value: Any) -> dict[str, Any]:
    """The tiny experiment with the value at the dotted `path` replaced; `...` deletes it."""
    data = copy.deepcopy(json.loads(TINY.read_text()))
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_experiments_load_and_round_trip(path: Path) -> None:
    """A resolved experiment that differs from its file would hide what was run."""
    experiment = load(path)
    assert Experiment.from_json(experiment.to_json(), path) == experiment
    again = json.loads(path.read_text())
    again.pop("$schema")
    assert experiment.to_json() == again


def test_the_four_promised_experiments_have_the_promised_sizes() -> None:
    """The names are a contract: 12M and 120M mean these shapes."""
    shapes = {load(p).name: load(p).shape for p in SHIPPED}
    twelve = shapes["ANDREA-12M"]
    assert (twelve.d_model, twelve.n_heads, twelve.n_layers, twelve.context, twelve.vocab_size) == (
        384,
        12,
        6,
        1024,
        2305,
    )
    assert shapes["ANDREA-12M-FP32"] == twelve and twelve.d_head == 32
    big = shapes["ANDREA-120M"]
    assert (big.d_model, big.n_heads, big.n_layers, big.context, big.vocab_size) == (768, 12, 12, 1024, 8449)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("train.lrr", 1, 'did you mean "lr"'),
        ("modle", {}, 'did you mean "model"'),
        ("train.lr", ..., 'add "lr"'),
        ("train.lr", "fast", "is not of type 'number'"),
        ("train.lr", 0, "0"),
        ("train.steps", 5.0, "is not of type 'integer'"),
        ("train.steps", True, "is not of type 'integer'"),
        ("model.tied_head", 1, "is not of type 'boolean'"),
        ("model.n_heads", 7, "multiple of model.n_heads"),
        ("train.microbatches", 3, "multiple of train.microbatches"),
        ("train.precision", "bf16", '"engine": "cpu"'),
        ("train.engine", "tpu", "is not one of"),
        ("train.warmup_steps", 10**6, "train.horizon"),
        ("firehose.weights", {"chitchat": 1.0}, "exactly the experiment's sources"),
        ("firehose.weights", {"chitchat": 0, "synthetic-chat": 0}, "above 0"),
        ("firehose.window_steps", [9, 7], "[least, most]"),
        ("sources.chitchat.min_characters", 10**9, "max_characters"),
        ("sources.chitchat.files", 3, "is not of type"),
        ("sources.chitchat.files", "a\0b", "name of a folder"),
        ("sources.Bad Name", {}, "does not match"),
        ("tokenizer.segments", 0, "minimum"),
        ("megachat.heldout_fraction", 0.9, "maximum"),
    ],
)
def test_a_mistake_is_refused_by_name(path: str, value: Any, told: str) -> None:
    """A misspelt key that is ignored trains another model than the one that was asked for."""
    with pytest.raises(ExperimentError) as caught:
        Experiment.from_json(changed(path, value), "mine.json")
    assert told in str(caught.value) and "mine.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "must be JSON"),
        ("[]", "must be a JSON object"),
        ('{"name": 1, "name": 2}', "twice"),
        ('{"name": NaN}', "finite"),
        ('{"lr": 1e999}', "finite"),
        ('{"lr": -1e999}', "finite"),
        ('{"lr": ' + "9" * 400 + "}", "finite"),
        ('{"lr": ' + "9" * 5000 + "}", "finite"),
        ('{"prompts": ["\\ud800"]}', "surrogates"),
        ("[" * 100_000, "must be JSON"),
    ],
)
def test_text_that_is_no_experiment(tmp_path: Path, text: str, told: str) -> None:
    """Python's JSON takes the last of two equal keys, NaN, 1e999 as infinity, and surrogates, in silence."""
    path = tmp_path / "ANDREA-X-TRAIN.json"
    path.write_text(text)
    with pytest.raises(ExperimentError, match=told):
        load(path)


def test_missing_file_lists_the_present_ones_and_the_name_must_fit(tmp_path: Path) -> None:
    """Two files with one name would share a run folder."""
    (tmp_path / "ANDREA-OTHER-TRAIN.json").write_bytes(TINY.read_bytes())
    with pytest.raises(ExperimentError, match=r"ANDREA-OTHER-TRAIN\.json"):
        load(tmp_path / "ANDREA-X-TRAIN.json")
    with pytest.raises(ExperimentError, match="file's name"):
        load(tmp_path / "ANDREA-OTHER-TRAIN.json")
    (tmp_path / "ANDREA-BYTES-TRAIN.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ExperimentError, match="UTF-8"):
        load(tmp_path / "ANDREA-BYTES-TRAIN.json")
    (tmp_path / "ANDREA-FOLDER-TRAIN.json").mkdir()
    with pytest.raises(ExperimentError, match="must be a file"):
        load(tmp_path / "ANDREA-FOLDER-TRAIN.json")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Some editors write one, and none shows it."""
    (tmp_path / TINY.name).write_bytes(b"\xef\xbb\xbf" + TINY.read_bytes())
    assert load(tmp_path / TINY.name) == load(TINY)


def test_canonical_text_does_not_depend_on_key_order() -> None:
    """Staleness and fingerprints compare this text."""
    assert canonical({"b": 1.5, "a": [1, {"d": 2, "c": 3}]}) == canonical({"a": [1, {"c": 3, "d": 2}], "b": 1.5})


def test_every_schema_field_is_described() -> None:
    """Editors show these descriptions, and our errors quote them."""

    def walk(node: dict[str, Any], where: str) -> None:
        assert node.get("description"), where
        for key, child in node.get("properties", {}).items():
            walk(child, f"{where}.{key}")

    walk(json.loads((ROOT / "workflow/schemas/experiment.schema.json").read_text()), "experiment")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "circle", "hole"])
def test_an_experiment_that_is_no_file(kind: str, tmp_path: Path) -> None:
    """Snakemake reads all that are named like one: a pipe or a device hung it, a link to itself stopped every target."""
    path = tmp_path / "ANDREA-X-TRAIN.json"
    make = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "circle": lambda: path.symlink_to(path),
        "hole": lambda: path.write_bytes(b"") or os.truncate(path, 5 << 30),
    }
    make[kind]()
    with pytest.raises(ExperimentError, match="must be a file that can be read"):
        load(path)
