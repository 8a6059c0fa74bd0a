"""The tokenizer stage: the sample follows the training mix, the same text gives the same bytes, the report is true."""

from pathlib import Path
from typing import Any

import pytest
from tokenizer_texts import conversations, experiment, write_megachat

from andrea.errors import DataError
from andrea.files import read_json
from andrea.tokenizer import load
from andrea.tokenizer.stage import build

SMALL = {"tokenizer.segments": 120, "tokenizer.sample_bytes": 40_000, "tokenizer.min_count": 3}
CODE = ["> def f(x):\n    return {'key': [x, x + 1]}\n< import os; print(os.path.join('a', \"b\"))"] * 150


@pytest.fixture(scope="module")
def megachat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megachat")
    chat = {"train": conversations(300), "heldout": conversations(30, seed=2)}
    write_megachat(folder, {"chitchat": chat, "synthetic-chat": {"train": CODE, "heldout": CODE[:9]}})
    return folder


@pytest.mark.parametrize("kind", ["harris", "bpe"])
def test_build(megachat: Path, tmp_path: Path, kind: str) -> None:
    """Two runs give the same bytes, and the numbers of the report are those of the file beside it."""
    e = experiment(SMALL | {"tokenizer.kind": kind})
    files = []
    for name in ("one", "two"):
        build(e, megachat, tmp_path / name)
        files.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert files[0].keys() == {"tokenizer.json", "report.json"}
    tokenizer, report = load(tmp_path / "one" / "tokenizer.json"), read_json(tmp_path / "one" / "report.json", "")
    assert tokenizer.vocab_size == e.vocab_size == report["vocab_size"]
    assert (report["kind"], report["segments"], report["sha256"]) == (kind, 120, tokenizer.sha256)
    heldout = conversations(30, seed=2)
    tokens = sum(map(len, tokenizer.encode_many(heldout)))
    assert report["bytes_per_token"]["sources"]["chitchat"] == round(sum(map(len, heldout)) / tokens, 4)
    rates = report["bytes_per_token"]
    assert rates["mix"] == pytest.approx(
        0.9 * rates["sources"]["chitchat"] + 0.1 * rates["sources"]["synthetic-chat"], abs=1e-3
    )
    assert 0.5 < report["segments_used"]["all"] <= 1


def test_sample_is_weighted_like_training(megachat: Path, tmp_path: Path) -> None:
    """The original 12M learned its tokenizer from the raw head of its corpus and wasted most of its segments."""
    overlap: dict[float, Any] = {}
    for weight in (1.0, 0.0):
        weights = {"chitchat": weight, "synthetic-chat": 1 - weight}
        build(experiment(SMALL | {"tokenizer.segments": 50, "firehose.weights": weights}), megachat, tmp_path)
        report = read_json(tmp_path / "report.json", "")
        segments = load(tmp_path / "tokenizer.json").token_bytes
        assert (b" return" in segments) == (weight == 0)
        assert report["sample"]["sources"]["chitchat"]["bytes"] == pytest.approx(40_000 * weight, abs=400)
        overlap[weight] = report["overlap"]
    assert overlap[1.0]["head"] > 0.6 > 0.3 > overlap[0.0]["head"]
    assert overlap[1.0]["sources"]["chitchat"] > 0.9 > overlap[1.0]["sources"]["synthetic-chat"]
    assert overlap[0.0]["sources"]["synthetic-chat"] > 0.9 > overlap[0.0]["sources"]["chitchat"]


@pytest.mark.parametrize("kind", ["harris", "bpe"])
def test_too_little_text_leaves_no_tokenizer(megachat: Path, tmp_path: Path, kind: str) -> None:
    """A vocabulary smaller than the model's would be found by the tokens stage, or not at all."""
    with pytest.raises(DataError, match="training sample must hold 30,000"):
        build(experiment(SMALL | {"tokenizer.kind": kind, "tokenizer.segments": 30_000}), megachat, tmp_path)
    assert not list(tmp_path.iterdir())
