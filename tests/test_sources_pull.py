"""A pull as a user runs it: in its own process, killed and started again, previewed, with lines of every kind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hubcases import HERMES, jsonl, led_to, pull_hermes, row, rows, serve, stored
from hubstub import Hub

from andrea.errors import DataError
from andrea.megachat import Conversation, Prose, Turn
from andrea.sources import pull as pull_module
from andrea.sources import shards
from andrea.sources.feed import Feed
from andrea.sources.pull import pull
from andrea.sources.shards import read_bucket, read_manifest

ROOT = Path(__file__).resolve().parent.parent


def environment(hub_url: str, folder: Path, **more: str) -> dict[str, str]:
    """A process's environment that leads to the hub at `hub_url` and nowhere else."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    home = {"HF_HOME": str(folder / "hf"), "HF_TOKEN": "", "HF_ENDPOINT": hub_url, "PYTHONPATH": str(ROOT)}
    return {**kept, "NO_PROXY": "127.0.0.1", **home, **more}


def script(folder: Path, hub: Hub, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """scripts/pull-hermes3.py, started in `folder`."""
    command = [sys.executable, str(ROOT / "scripts" / "pull-hermes3.py"), "--lock", "lock.json", *arguments]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment(hub.url, folder, **more), **streams)


def bucket(folder: Path, name: str) -> list[Any]:
    return list(read_bucket(folder, read_manifest(folder), name))


# --- in its own process ----------------------------------------------------------------------------------------------


def test_a_killed_download_goes_on(tmp_path: Path) -> None:
    """Guards resume over SIGKILL: the second process asks for the rest only, and the text is whole."""
    data = jsonl(rows(12_000))
    with serve(data, pace=0.05) as hub:
        process = script(tmp_path, hub, "--out", "raw")
        download = tmp_path / "raw" / "download"
        deadline = time.monotonic() + 30
        while not any(path.stat().st_size > 300_000 for path in download.glob(".*.part")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert [path.suffix for path in download.iterdir()] == [".part"]
        have = next(download.iterdir()).stat().st_size
        assert 300_000 < have < len(data)
        hub.pace = 0.0
        hub.requests.clear()
        process = script(tmp_path, hub, "--out", "raw")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert f"bytes={have}-" in " ".join(hub.requests)
    assert stored(tmp_path).read_bytes() == data
    assert sum(part["documents"] for part in read_manifest(tmp_path / "raw")["buckets"].values()) == 12_000


def test_a_preview_streams_from_the_pin(tmp_path: Path) -> None:
    """Guards against the two traps of load_dataset: a local folder of the same name, and any revision but the pin."""
    shadow = tmp_path / HERMES.repo
    shadow.mkdir(parents=True)
    (shadow / HERMES.file).write_bytes(jsonl([row("shadow", "shadow")]))
    with serve(jsonl([[], *rows(60_000)])) as hub:
        process = script(tmp_path, hub, "--preview", "3")
        text, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        files = [line for line in hub.requests if "/resolve/" in line]
    assert text == (
        "--- row 1: dropped, not a JSON object\n"
        "--- row 2: creative\n> Write a poem about 0.\n< Answer 0: \n"
        "--- row 3: general\n> What is 1 plus 1?\n< Answer 1: x\n"
    )
    assert all(HERMES.revision in line for line in files)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("status", [503, 429])
def test_a_preview_of_a_sick_hub_ends_soon(tmp_path: Path, status: int) -> None:
    """Guards against minutes of retries in the streaming library: the probe finds it first."""
    with serve(jsonl(rows(3)), status=status) as hub:
        process = script(tmp_path, hub, "--preview", "3")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.startswith("error: the data set hermes3 must be reachable")
    assert "Traceback" not in errors
    assert len(hub.requests) == 1


def test_a_gated_preview_says_so(tmp_path: Path) -> None:
    """Guards the streaming path's own failure: the facts are public, the file is not."""
    with serve(jsonl(rows(3)), token="hf_right") as hub:
        process = script(tmp_path, hub, "--preview", "3")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "gated" in errors
    assert "Traceback" not in errors


def test_a_dead_proxy_is_named(tmp_path: Path) -> None:
    with serve(jsonl(rows(3))) as hub:
        process = script(tmp_path, hub, "--out", "raw", HTTP_PROXY="http://127.0.0.1:9", NO_PROXY="")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "HTTP_PROXY" in errors
    assert "Traceback" not in errors


# --- lines of every kind ---------------------------------------------------------------------------------------------

HOSTILE = [
    (b"", "empty line"),
    (b"   ", "empty line"),
    (b"{", "not JSON"),
    (b'{"conversations": [' + b"[" * 100_000, "not JSON"),
    (b"1" * 10_000, "not JSON"),
    (b"\x00", "not JSON"),
    (b"[1, 2]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b"{}", 'none of the keys "turns", "conversations", "messages", "text"'),
    (b'{"conversations": "x"}', "turns are not a list"),
    (b'{"conversations": []}', "no turns"),
    (b'{"conversations": [1]}', "a turn is not an object"),
    (b'{"conversations": [{"from": "human"}]}', 'a turn has no strings "from" and "value"'),
    (b'{"conversations": [{"from": "human", "value": 5}]}', 'a turn has no strings "from" and "value"'),
    (b'{"conversations": [{"from": ["human"], "value": "x"}]}', 'a turn has no strings "from" and "value"'),
    (b'{"conversations": [{"from": "wizard", "value": "x"}]}', "a turn of an unknown role"),
    (b'{"conversations": [{"from": "human", "value": " \\n"}]}', "an empty turn"),
    (b'{"conversations": [{"from": "system", "value": "x"}]}', "a system prompt that nothing follows"),
    (b'{"conversations": [{"from": "human", "value": "\xff"}]}', "U+FFFD: bytes that are no UTF-8"),
    (b'{"text": 5}', '"text" is not a string'),
    (b'{"text": ""}', "empty text"),
]


def test_bad_lines_are_counted_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the pull of a million lines: none of these may end it, and each is counted under its reason."""
    good = [row("a\u2028b\u0085c", "d\r\ne"), row("x\ud800y", "z"), row("q", "a", system="Be kind.")]
    lines = [json.dumps(good[0], ensure_ascii=False).encode(), *(json.dumps(value).encode() for value in good[1:])]
    data = b"\n".join([*lines, *(line for line, _ in HOSTILE)])
    with serve(data) as hub, led_to(hub.url, monkeypatch):
        pull_hermes(tmp_path)
    manifest = read_manifest(tmp_path / "raw")
    reasons = [reason for _, reason in HOSTILE]
    assert manifest["dropped"] == {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    assert manifest["replaced_surrogates"] == 1
    assert bucket(tmp_path / "raw", "general") == [
        Conversation((Turn("user", "a\u2028b\u0085c"), Turn("reply", "d\r\ne"))),
        Conversation((Turn("user", "x\ufffdy"), Turn("reply", "z"))),
        Conversation((Turn("user", "Be kind.\n\nq"), Turn("reply", "a"))),
    ]


def test_a_file_without_a_document_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(b"{\n") as hub, led_to(hub.url, monkeypatch), pytest.raises(DataError, match="must hold a document"):
        pull_hermes(tmp_path)
    assert not (tmp_path / "raw" / "manifest.json").exists()


# --- shards ----------------------------------------------------------------------------------------------------------


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
