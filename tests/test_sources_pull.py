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
from hubcases import HERMES, HERMES_FILE, jsonl, led_to, pull_hermes, row, rows, serve, stored
from hubstub import Hub

from andrea.errors import DataError
from andrea.megachat import Conversation, Turn
from andrea.sources import hub
from andrea.sources.catalogue import find_dataset
from andrea.sources.pull import preview
from andrea.sources.shards import read_bucket, read_manifest

ROOT = Path(__file__).resolve().parent.parent


def environment(hub_url: str, folder: Path, **more: str) -> dict[str, str]:
    """A process's environment that leads to the hub at `hub_url` and nowhere else."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    home = {"HF_HOME": str(folder / "hf"), "HF_TOKEN": "", "HF_ENDPOINT": hub_url, "PYTHONPATH": str(ROOT)}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", **home, **more}


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


def test_a_preview_without_a_network_names_the_place_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against advice that puts 1.7 GB where no pull ever looks."""

    def refuse(_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(hub, "resolve", refuse)
    dataset = find_dataset("hermes3")
    with pytest.raises(DataError, match=f"data/raw/hermes3/{dataset.revision}/download/{dataset.files[0]}"):
        next(preview("hermes3", 2, lock=tmp_path / "lock.json"))


def test_a_preview_streams_from_the_pin(tmp_path: Path) -> None:
    """Guards against the two traps of load_dataset: a local folder of the same name, and any revision but the pin."""
    shadow = tmp_path / HERMES.repo
    shadow.mkdir(parents=True)
    (shadow / HERMES_FILE).write_bytes(jsonl([row("shadow", "shadow")]))
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
