"""A tokenizer.json is believed only when it is what we would write for its own segments."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andrea.errors import DataError
from andrea.tokenizer import exported
from andrea.tokenizer.exported import from_merges, from_segments, read, to_bytes

SEGMENTS = [b"\n< ", b" the", b"ing", b"\xc3\xa9", b"a" * 64]
MERGES = [(b"a", b"b"), (b"ab", b"c"), (b"b", b"c"), (b"a", b"bc")]  # the last makes "abc" a second time


def test_both_kinds_come_back(tmp_path: Path) -> None:
    """The file alone must hold all that the encoder needs."""
    path = tmp_path / "tokenizer.json"
    for learned in (from_segments(SEGMENTS), from_merges(MERGES), from_segments([])):
        path.write_bytes(to_bytes(learned.document))
        assert read(path) == learned
    assert from_segments(SEGMENTS).segments == SEGMENTS
    assert from_merges(MERGES).segments == [b"ab", b"abc", b"bc"]


def vocab(document: dict[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = document["model"]["vocab"]
    return words


def swap(document: dict[str, Any], one: str, two: str) -> None:
    words = vocab(document)
    words[one], words[two] = words[two], words[one]


def rename(document: dict[str, Any], old: str, new: str) -> None:
    vocab(document)[new] = vocab(document).pop(old)


HARRIS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "id gap": lambda d: vocab(d).update(ing=999),
    "double id": lambda d: vocab(d).update(ing=258),
    "negative id": lambda d: vocab(d).update(ing=-1),
    "id as text": lambda d: vocab(d).update(ing="259"),
    "id as truth value": lambda d: vocab(d).update(ing=True),
    "huge id": lambda d: vocab(d).update(ing=10**30),
    "bytes out of order": lambda d: swap(d, "a", "b"),
    "BOS elsewhere": lambda d: swap(d, "<|bos|>", "ing"),
    "segments and pattern in another order": lambda d: swap(d, "Ġthe", "ing"),
    "outside the alphabet": lambda d: rename(d, "ing", "in g"),
    "empty segment": lambda d: rename(d, "ing", ""),
    "too long": lambda d: rename(d, "ing", "b" * 65),
    "one segment less": lambda d: vocab(d).popitem(),
    "no vocabulary": lambda d: d["model"].pop("vocab"),
    "vocabulary a list": lambda d: d["model"].update(vocab=["a"]),
    "other pattern": lambda d: d["pre_tokenizer"]["pretokenizers"][1]["pattern"].update(Regex="."),
    "a normalizer": lambda d: d.update(normalizer={"type": "Lowercase"}),
    "no decoder": lambda d: d.pop("decoder"),
    "one key more": lambda d: d.update(extra=1),
    "a model in the model": lambda d: d["model"].update(model=1),
    "another model": lambda d: d["model"].update(type="Unigram"),
    "model a list": lambda d: d.update(model=[]),
    "BOS not special": lambda d: d["added_tokens"][0].update(special=False),
    "two special tokens": lambda d: d["added_tokens"].append(d["added_tokens"][0]),
}
BPE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "merge of one": lambda d: d["model"]["merges"].append(["a"]),
    "merge as text": lambda d: d["model"]["merges"].append("a b"),
    "merge of numbers": lambda d: d["model"]["merges"].append([1, 2]),
    "merges in another order": lambda d: d["model"]["merges"].reverse(),
    "no merges": lambda d: d["model"].pop("merges"),
    "merge without a token": lambda d: d["model"]["merges"].append(["x", "y"]),
    "dropout": lambda d: d["model"].update(dropout=0.1),
}


@pytest.mark.parametrize(("kind", "change"), [*(("harris", name) for name in HARRIS), *(("bpe", name) for name in BPE)])
def test_changed_files_are_refused(tmp_path: Path, kind: str, change: str) -> None:
    """A file that loads but numbers its tokens otherwise would ruin a corpus without a word."""
    document = copy.deepcopy((from_segments(SEGMENTS) if kind == "harris" else from_merges(MERGES)).document)
    (HARRIS if kind == "harris" else BPE)[change](document)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(to_bytes(document))
    with pytest.raises(DataError, match="must be a tokenizer that ANDREA made"):
        read(path)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"model": ' + b"[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(DataError):
        read(path)


def test_missing_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many GB must not be read before it is looked at."""
    with pytest.raises(DataError, match="must exist"):
        read(tmp_path / "none.json")
    monkeypatch.setattr(exported, "MAX_FILE_BYTES", 100)
    (tmp_path / "big.json").write_bytes(json.dumps(from_segments(SEGMENTS).document).encode())
    with pytest.raises(DataError, match="must be a tokenizer"):
        read(tmp_path / "big.json")
