"""Samples: by weight, evenly spread, of exactly the megachat that the manifest describes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_texts import conversations, experiment, write_megachat

from andrea.errors import DataError
from andrea.files import read_json, write_json
from andrea.tokenizer.corpus import head, open_corpus, shares, spread


@pytest.mark.parametrize(
    ("available", "weights", "expected"),
    [
        ({"a": 900, "b": 900}, {"a": 0.9, "b": 0.1}, {"a": 90, "b": 10}),
        ({"a": 30, "b": 900}, {"a": 9.0, "b": 1.0}, {"a": 30, "b": 70}),
        ({"a": 30, "b": 20}, {"a": 1.0, "b": 1.0}, {"a": 30, "b": 20}),
        ({"a": 10, "b": 900, "c": 900}, {"a": 2.0, "b": 1.0, "c": 1.0}, {"a": 10, "b": 45, "c": 45}),
        ({"a": 900, "b": 900}, {"a": 1.0, "b": 0.0}, {"a": 100, "b": 0}),
        ({"a": 0, "b": 0}, {"a": 1.0, "b": 0.0}, {"a": 0, "b": 0}),
    ],
)
def test_shares(available: dict[str, int], weights: dict[str, float], expected: dict[str, int]) -> None:
    """What a short source cannot give goes to the others by weight, and a source of weight 0 gives nothing."""
    assert shares(available, weights, 100) == expected


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(0, 2000))
def test_spread_takes_what_was_asked(sizes: list[int], wanted: int) -> None:
    """Never more than asked, and less by one document at most."""
    texts = ["é" * (size // 2) + "x" * (size % 2) for size in sizes]
    taken = spread(texts, sum(sizes), wanted)
    size = sum(len(text.encode()) for text in taken)
    assert size <= wanted
    assert size >= min(wanted, sum(sizes)) - max(sizes, default=0) - 1


def test_spread_reaches_the_whole_file() -> None:
    """The first documents of a sorted file are not like the others."""
    texts = [f"{n:04}" for n in range(1000)]
    taken = [int(text) for text in spread(texts, 4000, 400)]
    assert len(taken) == 100
    assert [n // 100 for n in taken] == [n for n in range(10) for _ in range(10)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"train": conversations(30), "heldout": conversations(5, seed=2)}
    write_megachat(tmp_path, {"chitchat": texts, "synthetic-chat": {name: t[:3] for name, t in texts.items()}})
    return tmp_path


def test_corpus_reads_what_was_written(folder: Path) -> None:
    corpus = open_corpus(experiment({}), folder)
    assert list(corpus["chitchat"]["train"].read()) == conversations(30)
    assert head(corpus, 10**6) == [*conversations(30), *conversations(30)[:3]]
    assert "".join(head(corpus, 100)) == conversations(30)[0][:100]


def change(path: Path, keys: str, value: Any) -> None:
    manifest = read_json(path / "manifest.json", "")
    *parents, last = keys.split(".")
    place = manifest
    for key in parents:
        place = place[key]
    place[last] = value
    write_json(path / "manifest.json", manifest)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ("sources", []),
        ("sources.chitchat", None),
        ("sources.chitchat.train", {"file": "chitchat.train.txt.zst"}),
        ("sources.chitchat.train.file", "../elsewhere"),
        ("sources.chitchat.train.bytes", -1),
        ("sources.chitchat.train.documents", "30"),
        ("sources.chitchat.heldout.sha256", "0" * 64),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, keys: str, value: Any) -> None:
    """Tokens of another run's text would train a model that no experiment describes."""
    change(folder, keys, value)
    with pytest.raises(DataError, match="must be the megachat of this experiment"):
        open_corpus(experiment({}), folder)


def test_missing_files_are_refused(folder: Path) -> None:
    (folder / "chitchat.train.txt.zst").unlink()
    with pytest.raises(DataError, match="must be the megachat"):
        open_corpus(experiment({}), folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match="must exist"):
        open_corpus(experiment({}), folder)
