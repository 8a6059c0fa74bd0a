"""Raw shards: a killed pull keeps what it finished, and nothing spoiled is believed."""

import json
from pathlib import Path
from typing import Any

import pytest

from andrea.errors import DataError, StorageError
from andrea.megachat import Prose
from andrea.sources import pull as pull_module
from andrea.sources import shards
from andrea.sources.feed import Feed
from andrea.sources.pull import pull
from andrea.sources.shards import read_bucket, read_manifest


def bucket(folder: Path, name: str) -> list[Any]:
    return list(read_bucket(folder, read_manifest(folder), name))


def own_text(folder: Path, count: int) -> Path:
    """A folder of the user's own text with `count` documents."""
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(
        b"".join(json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(count))
    )
    return folder


def pull_own(texts: Path, out: Path) -> None:
    pull("mine", out, lock=Path("unused"), offline=True, files=texts)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "DOCUMENTS_PER_SHARD", 10)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pull_and_die(texts: Path, out: Path, documents: int, code: str = "") -> None:
    """A pull that dies after so many documents, as by SIGKILL: nothing is cleaned up. `code` stands for other code."""
    whole = pull_module._open

    def dying(*arguments: Any) -> Feed:
        feed = whole(*arguments)
        items = (item if number < documents else die() for number, item in enumerate(feed.items))
        return Feed(feed.key, items, feed.total, feed.unit, feed.facts)

    def die() -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull_module, "_open", dying)
        if code:
            patch.setattr(pull_module, "_code", lambda: code)
        with pytest.raises(KeyboardInterrupt):
            pull_own(texts, out)


def test_a_killed_pull_keeps_its_finished_shards(
    tmp_path: Path, small_shards: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards resume by shard: finished shards are not written again, a damaged one is, and the bytes are the same."""
    texts = own_text(tmp_path / "texts", 57)
    pull_own(texts, tmp_path / "whole")
    pull_and_die(texts, tmp_path / "raw", 35)
    assert names(tmp_path / "raw") == [
        "all-00000.jsonl.zst",
        "all-00001.jsonl.zst",
        "all-00002.jsonl.zst",
        "journal.json",
    ]
    kept, damaged = (tmp_path / "raw" / f"all-0000{i}.jsonl.zst" for i in (0, 1))
    written = kept.stat().st_ino
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    capsys.readouterr()
    pull_own(texts, tmp_path / "raw")
    assert "2 finished shards stay" in capsys.readouterr().err
    assert kept.stat().st_ino == written
    assert names(tmp_path / "raw") == names(tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "raw" / path.name).read_bytes() == path.read_bytes()


def test_shards_of_other_text_or_code_are_not_kept(
    tmp_path: Path, small_shards: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a mixture: a journal counts only for the input and the code that it was written for."""
    texts = own_text(tmp_path / "texts", 30)
    pull_and_die(texts, tmp_path / "raw", 25)
    pull_and_die(texts, tmp_path / "raw", 15, code="edited")
    (texts / "a.jsonl").write_text('{"text": "new"}\n')
    pull_own(texts, tmp_path / "raw")
    assert "stay" not in capsys.readouterr().err
    assert bucket(tmp_path / "raw", "all") == [Prose("new")]
    assert names(tmp_path / "raw") == ["all-00000.jsonl.zst", "manifest.json"], "shards of the old text are gone"


def test_left_overs_of_killed_writes_go(tmp_path: Path) -> None:
    texts = own_text(tmp_path / "texts", 3)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / ".all-00000.jsonl.zst.123.tmp").write_bytes(b"half")
    (tmp_path / "raw" / "journal.json").write_bytes(b"{half")
    pull_own(texts, tmp_path / "raw")
    assert names(tmp_path / "raw") == ["all-00000.jsonl.zst", "manifest.json"]


def spoil(folder: Path, change: Any) -> None:
    """Change one thing in a pulled folder: a function of its manifest and its first shard."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    change(manifest, folder / "all-00000.jsonl.zst")
    (folder / "manifest.json").write_text(json.dumps(manifest))


SPOILS = {
    "a changed byte": lambda m, shard: shard.write_bytes(shard.read_bytes()[:-1] + b"?"),
    "a missing shard": lambda m, shard: shard.unlink(),
    "a wrong count": lambda m, shard: m["buckets"]["all"]["shards"][0].update(documents=4),
    "a path": lambda m, shard: m["buckets"]["all"]["shards"][0].update(file="../all-00000.jsonl.zst"),
    "no buckets": lambda m, shard: m.pop("buckets"),
    "buckets of another type": lambda m, shard: m.update(buckets=[1]),
    "a negative count": lambda m, shard: m["buckets"]["all"].update(documents=-1),
    "a licence that is no text": lambda m, shard: m.update(licence=None),
    "files that are no text": lambda m, shard: m.update(files=1),
}


@pytest.mark.parametrize("what", SPOILS)
def test_spoiled_raw_text_is_refused(tmp_path: Path, what: str) -> None:
    """Guards the reader of shards: bytes and manifest are checked before a document is believed."""
    pull_own(own_text(tmp_path / "texts", 3), tmp_path / "raw")
    assert len(bucket(tmp_path / "raw", "all")) == 3
    spoil(tmp_path / "raw", SPOILS[what])
    with pytest.raises(DataError, match=r"manifest\.json|all-00000"):
        bucket(tmp_path / "raw", "all")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"text": 5}',
        b'{"turns": []}',
        b'{"turns": [{"role": "system", "text": "x"}]}',
        b"\xff",
        b'{"turns": [{"role": "user", "text": 1}]}',
    ],
)
def test_a_shard_of_other_lines_is_refused(tmp_path: Path, line: bytes) -> None:
    """Guards the fast reader: it believes nothing about a line, even in a shard whose sha256 is right."""
    writer = shards.Shards(tmp_path, ("all",), "key")
    writer.add("all", Prose("good"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "to_line", lambda _: line + b"\n")
        writer.add("all", Prose("bad"))
    facts = dict.fromkeys(("dataset", "revision", "kind", "licence", "provenance"), "x")
    writer.finish(facts)
    with pytest.raises(DataError, match="line 2 must be a document"):
        bucket(tmp_path, "all")


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("in the way")
    with pytest.raises(StorageError, match="must be a folder"):
        pull_own(own_text(tmp_path / "texts", 3), tmp_path / "raw")
