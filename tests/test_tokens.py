"""The tokens stage: every document of every source, BOS in front, in order, whatever the number of processes."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tokenizer_texts import conversations, experiment, write_megachat

from andrea.btok import open_btok
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.files import read_json, sha256_file
from andrea.tokenizer import BOS, load, parallel
from andrea.tokenizer.stage import build
from andrea.tokens import encode_corpus

SMALL = {"tokenizer.segments": 60, "tokenizer.min_count": 2, "model.context": 32}
TEXTS = {
    "chitchat": {"train": conversations(120), "heldout": [*conversations(9, seed=2), "", "<|bos|> 😂 é\r\n\x00"]},
    "synthetic-chat": {"train": conversations(20, seed=3), "heldout": conversations(3, seed=4)},
}


def make(folder: Path, texts: dict[str, dict[str, list[str]]] = TEXTS, **changes: Any) -> Experiment:
    """A megachat and its tokenizer in `folder`."""
    e = experiment(SMALL | changes)
    write_megachat(folder / "megachat", texts)
    build(e, folder / "megachat", folder / "tokenizer")
    return e


def encode(e: Experiment, folder: Path, threads: int = 1) -> dict[str, Any]:
    encode_corpus(e, folder / "megachat", folder / "tokenizer" / "tokenizer.json", folder / "tokens", threads)
    return read_json(folder / "tokens" / "manifest.json", "")


@pytest.mark.parametrize("kind", ["harris", "bpe"])
def test_every_document_comes_back(tmp_path: Path, kind: str) -> None:
    """Counts and hashes of the manifest are those of the files; bytes are those of the text."""
    e = make(tmp_path, **{"tokenizer.kind": kind})
    manifest = encode(e, tmp_path)
    tokenizer = load(tmp_path / "tokenizer" / "tokenizer.json")
    assert (manifest["vocab_size"], manifest["tokenizer_sha256"]) == (317, tokenizer.sha256)
    for source, splits in TEXTS.items():
        for split, texts in splits.items():
            entry = manifest["sources"][source][split]
            path = tmp_path / "tokens" / entry["file"]
            tokens = open_btok(path)
            starts = tokens.offsets.tolist()
            documents = [tokens.tokens[a:b] for a, b in itertools.pairwise(starts)]
            assert [tokenizer.decode(ids[1:]) for ids in documents] == texts
            assert all(ids[0] == BOS for ids in documents)
            assert (tokens.vocab_size, tokens.tokenizer_sha256) == (317, tokenizer.sha256)
            assert entry == {
                "file": f"{source}.{split}.btok",
                "sha256": sha256_file(path),
                "documents": len(texts),
                "tokens": len(tokens.tokens),
                "bytes": sum(len(text.encode()) for text in texts),
            }


def test_processes_do_not_change_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are the machine's, not the experiment's."""
    e = make(tmp_path)
    one = encode(e, tmp_path)
    monkeypatch.setattr(parallel, "BATCH_BYTES", 2000)
    assert encode(e, tmp_path, threads=2) == one


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_source_shorter_than_a_block_is_refused(tmp_path: Path, split: str) -> None:
    """Training would find no block to read; the message must say how much there is."""
    texts = TEXTS | {"synthetic-chat": TEXTS["synthetic-chat"] | {split: ["> hi", "> ho"]}}
    e = make(tmp_path, texts)
    tokenizer = load(tmp_path / "tokenizer" / "tokenizer.json")
    tokens = 2 + len(tokenizer.encode("> hi")) + len(tokenizer.encode("> ho"))
    with pytest.raises(
        DataError, match=f'{split} split of the source "synthetic-chat" must hold one block: 33'
    ) as told:
        encode(e, tmp_path)
    assert told.value.got == f"{tokens} tokens in 2 documents"
    assert not (tmp_path / "tokens" / "manifest.json").exists()


def test_exactly_one_block_is_enough(tmp_path: Path) -> None:
    texts = TEXTS | {"synthetic-chat": TEXTS["synthetic-chat"] | {"heldout": ["\x01" * 32]}}
    e = make(tmp_path, texts)
    assert encode(e, tmp_path)["sources"]["synthetic-chat"]["heldout"]["tokens"] == 33


@pytest.mark.parametrize("changes", [{"tokenizer.segments": 61}, {"tokenizer.kind": "bpe"}])
def test_another_tokenizer_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A tokenizer of an earlier experiment file must not number this one's tokens."""
    make(tmp_path)
    with pytest.raises(DataError, match="must be the experiment's tokenizer"):
        encode(experiment(SMALL | changes), tmp_path)


def test_files_of_other_sources_go_and_an_old_manifest_first(tmp_path: Path) -> None:
    """After a failure no manifest may describe half-new files; after success no stale source may lie about."""
    e = make(tmp_path)
    encode(e, tmp_path)
    stale = tmp_path / "tokens" / "hermes.train.btok"
    stale.write_bytes(b"")
    (tmp_path / "tokens" / "notes.txt").write_bytes(b"")
    encode(e, tmp_path)
    assert not stale.exists()
    assert (tmp_path / "tokens" / "notes.txt").exists()
    with pytest.raises(DataError, match="must hold one block"):
        encode(experiment(SMALL | {"model.context": 60_000}), tmp_path)
    assert not (tmp_path / "tokens" / "manifest.json").exists()
