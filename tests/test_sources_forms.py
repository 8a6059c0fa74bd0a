"""Data sets of several files and of Parquet, pulled from a hub: each form through lock, download, shards and manifest."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hubcases import led_to
from hubstub import Hub
from parquetcases import chat, parquet, serve_files
from test_sources_pull import environment

from andrea.errors import DataError, StorageError
from andrea.files import sha256_bytes
from andrea.megachat import Conversation, Turn
from andrea.sources import forms, rows
from andrea.sources import hub as hub_module
from andrea.sources.catalogue import find_dataset
from andrea.sources.huberrors import Unreachable
from andrea.sources.pull import preview, pull
from andrea.sources.shards import read_bucket, read_manifest

SMOLTALK, OASST, GUTENBERG = map(find_dataset, ("smol-smoltalk", "oasst2", "gutenberg"))
TALKS = [parquet([chat(10 * part + i) for i in range(10)], group=4) for part in range(len(SMOLTALK.files))]


def pull_to(folder: Path, name: str, *, offline: bool = False) -> dict[str, Any]:
    pull(name, folder / "raw", lock=folder / "lock.json", offline=offline, files=None)
    return read_manifest(folder / "raw")


def documents(folder: Path) -> list[Any]:
    return list(read_bucket(folder / "raw", read_manifest(folder / "raw"), "all"))


def transferred(hub: Hub) -> list[str]:
    return [line.split("/resolve/")[1].split("/", 1)[1] for line in hub.requests if "/resolve/" in line]


# --- several files ---------------------------------------------------------------------------------------------------


def test_all_files_are_pulled_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards data sets of several files: order, lock and manifest name every one of them."""
    with serve_files(SMOLTALK, TALKS) as hub, led_to(hub.url, monkeypatch):
        manifest = pull_to(tmp_path, "smol-smoltalk")
        assert transferred(hub) == list(SMOLTALK.files)
    assert documents(tmp_path) == [
        Conversation((Turn("user", f"Question {i}?"), Turn("reply", f"Answer {i}."))) for i in range(40)
    ]
    assert manifest["hub_files"] == [
        {"file": file, "sha256": sha256_bytes(data)} for file, data in zip(SMOLTALK.files, TALKS, strict=True)
    ]
    locked = json.loads((tmp_path / "lock.json").read_bytes())["datasets"]["smol-smoltalk"]["files"]
    assert [file["size"] for file in locked] == list(map(len, TALKS))
    assert pull_to(tmp_path, "smol-smoltalk", offline=True) == manifest, "the files on disk suffice"


def test_whole_files_stay_when_a_later_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a gigabyte fetched twice, and the way by hand, which must name just the files that lack."""
    with serve_files(SMOLTALK, TALKS, status=503, status_after=5) as hub, led_to(hub.url, monkeypatch):
        with pytest.raises(Unreachable, match="503, the hub is not well") as caught:
            pull_to(tmp_path, "smol-smoltalk")
        left = [file for file in SMOLTALK.files if not (tmp_path / "raw" / "download" / file).exists()]
        assert 0 < len(left) < len(TALKS)
        with pytest.raises(Unreachable, match=f"{len(left)} files are not on this disk") as offline:
            pull_to(tmp_path, "smol-smoltalk", offline=True)
        for file, data in zip(SMOLTALK.files, TALKS, strict=True):
            assert (sha256_bytes(data) in str(offline.value)) == (file in left)
            assert sha256_bytes(data) in str(caught.value)
        hub.status = 0
        hub.requests.clear()
        pull_to(tmp_path, "smol-smoltalk")
        assert transferred(hub) == left
    assert len(documents(tmp_path)) == 40


def test_a_changed_file_among_several_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files(SMOLTALK, TALKS) as hub, led_to(hub.url, monkeypatch):
        pull_to(tmp_path, "smol-smoltalk")
    second = tmp_path / "raw" / "download" / SMOLTALK.files[1]
    second.write_bytes(TALKS[0])
    with pytest.raises(DataError, match=f"must be {SMOLTALK.files[1]} of HuggingFaceTB/smol-smoltalk"):
        pull_to(tmp_path, "smol-smoltalk", offline=True)


def test_the_room_for_all_files_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a disk that is full after the third file of four: shards included, before the first byte."""
    asked: list[int] = []

    def refuse(path: Path, size: int, what: str) -> None:
        asked.append(size)
        raise StorageError(f"{what} needs room", got="none", fix="make some")

    monkeypatch.setattr(hub_module, "require_free", refuse)
    with serve_files(SMOLTALK, TALKS) as hub, led_to(hub.url, monkeypatch):
        with pytest.raises(StorageError, match="the data set smol-smoltalk needs room"):
            pull_to(tmp_path, "smol-smoltalk")
        assert transferred(hub) == []
    assert asked == [sum(map(len, TALKS)) + int(1.2 * sum(map(len, TALKS)))]


# --- the forms -------------------------------------------------------------------------------------------------------


def test_bad_conversations_are_counted_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the pull of half a million rows: none of these may end it; a system prompt joins the user's turn."""
    bad = [{"messages": [], "source": "x"}, {"messages": None, "source": "x"}, chat(3), chat(4)]
    bad[2]["messages"][0]["role"] = "wizard"
    bad[3]["messages"][1]["content"] = None
    contents = [parquet([chat(1, system="Be kind."), *bad]), *TALKS[1:]]
    with serve_files(SMOLTALK, contents) as hub, led_to(hub.url, monkeypatch):
        manifest = pull_to(tmp_path, "smol-smoltalk")
    assert manifest["dropped"] == {
        'a turn has no strings "role" and "content"': 1,
        "a turn of an unknown role": 1,
        "no turns": 1,
        "turns are not a list": 1,
    }
    assert documents(tmp_path)[0].turns[0] == Turn("user", "Be kind.\n\nQuestion 1?")


def test_trees_and_books_come_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the wiring of both forms, columns included: other columns of the file are not asked for."""
    message = {"lang": "en", "deleted": False, "rank": None, "emojis": {"name": ["+1"], "count": [2]}}
    tree = [
        {**message, "message_id": "a", "parent_id": None, "role": "prompter", "text": "Why?"},
        {**message, "message_id": "b", "parent_id": "a", "role": "assistant", "text": "So.", "rank": 1},
        {**message, "message_id": "c", "parent_id": "a", "role": "assistant", "text": "Because.", "rank": 0},
    ]
    with serve_files(OASST, [parquet(tree, group=2)]) as hub, led_to(hub.url, monkeypatch):
        manifest = pull_to(tmp_path / "o", "oasst2")
    assert documents(tmp_path / "o") == [Conversation((Turn("user", "Why?"), Turn("reply", "Because.")))]
    assert manifest["dropped"] == {"on another branch than the best": 1}
    books = [{"id": str(i), "text": f"Book {i}.\r\n\r\n" + "word " * 900} for i in range(3)]
    with serve_files(GUTENBERG, [parquet(books, group=2)]) as hub, led_to(hub.url, monkeypatch):
        pull_to(tmp_path / "g", "gutenberg")
    texts = [document.text for document in documents(tmp_path / "g")]
    assert texts[0::3] == ["Book 0.", "Book 1.", "Book 2."]
    assert [len(text) for text in texts[1:3]] == [3999, 499], "900 words in two pieces"


@pytest.mark.parametrize(
    "data", [b"PAR1 this is not Parquet", parquet([{"other": 1}])], ids=["no Parquet", "other columns"]
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with (
        serve_files(GUTENBERG, [data]) as hub,
        led_to(hub.url, monkeypatch),
        pytest.raises(DataError, match="must be a Parquet file with the columns text"),
    ):
        pull_to(tmp_path, "gutenberg")
    assert not (tmp_path / "raw" / "manifest.json").exists()


def test_rows_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: books are handed on in small batches, whatever the row group."""
    path = tmp_path / "books[1].parquet"  # brackets are a pattern to the library unless escaped
    path.write_bytes(parquet([{"text": f"Book {i}.", "id": i} for i in range(50)], group=50))
    sizes: list[int] = []
    original = rows._batches

    def watched(*arguments: Any, **options: Any) -> Any:
        for batch in original(*arguments, **options):
            sizes.append(len(batch["text"]))
            assert list(batch) == ["text"]
            yield batch

    monkeypatch.setattr(rows, "_batches", watched)
    found = [item.parsed.document.text for item in forms.items(GUTENBERG, [rows.local_url(path)])]
    assert found == [f"Book {i}." for i in range(50)]
    assert max(sizes) == forms.BOOK_ROWS


FAILING = """
import sys
from pathlib import Path
from andrea.cli import run_safely
from andrea.errors import StorageError
from andrea.sources import pull as module

def refuse(self, bucket, document):
    raise StorageError("the disk must have room", got="none", fix="make some")

module.Shards.add = refuse
sys.exit(run_safely(lambda: module.pull("smol-smoltalk", Path("raw"), lock=Path("lock.json"), offline=False, files=None)))
"""


def test_a_pull_that_fails_in_the_middle_of_a_file_ends(tmp_path: Path) -> None:
    """Guards the end of the process: a Parquet stream that is left half read hangs or aborts it, one time in three."""
    contents = [parquet([chat(i) for i in range(20_000)], group=1000), *TALKS[1:]]
    with serve_files(SMOLTALK, contents) as hub:
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", FAILING],
                cwd=tmp_path,
                env=environment(hub.url, tmp_path),
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert done.returncode == 1, done.stderr
            assert "the disk must have room" in done.stderr


def test_a_preview_is_of_jsonl(tmp_path: Path) -> None:
    for name in ("smol-smoltalk", "chitchat"):
        with pytest.raises(DataError, match="a preview is of a data set of the hub in JSONL"):
            list(preview(name, 2, lock=tmp_path / "lock.json"))
