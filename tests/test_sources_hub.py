"""Pulling from the hub: pinned, checked, resumable, and every failure one short error that says what to do by hand."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hubcases import HERMES, HERMES_FILE, jsonl, led_to, pull_hermes, rows, serve, stored
from hubstub import Hub
from huggingface_hub import constants

from andrea import files
from andrea.errors import AndreaError, DataError, RunError, StorageError
from andrea.sources import hub as hub_module
from andrea.sources import pull as pull_module
from andrea.sources.huberrors import Unreachable

DATA = jsonl(rows(300))
LARGE = jsonl(rows(9000))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(DATA) as hub, led_to(hub.url, monkeypatch):
        yield hub


def transfers(hub: Hub) -> list[str]:
    """The requests for the file itself."""
    return [line for line in hub.requests if f"/resolve/{HERMES.revision}/{HERMES_FILE}" in line]


def left(folder: Path) -> list[str]:
    """Everything that a failed pull leaves behind."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def fails(folder: Path, *, kind: type[AndreaError] = DataError, says: str, offline: bool = False) -> str:
    """Pull, expect `kind`, and check what every failure promises: quick, and no half file under a final name."""
    began = time.monotonic()
    with pytest.raises(kind, match=says) as caught:
        pull_hermes(folder, offline=offline)
    assert time.monotonic() - began < 10
    assert not stored(folder).exists() or stored(folder).stat().st_size == len(DATA)
    assert not (folder / "raw" / "manifest.json").exists()
    return str(caught.value)


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "raw" / "manifest.json").read_bytes())


# --- what works ------------------------------------------------------------------------------------------------------


def test_a_pull_fills_buckets_lock_and_manifest(hub: Hub, tmp_path: Path) -> None:
    pull_hermes(tmp_path)
    got = manifest(tmp_path)
    assert {name: bucket["documents"] for name, bucket in got["buckets"].items()} == dict.fromkeys(HERMES.buckets, 100)
    assert (got["dataset"], got["revision"], got["licence"]) == ("hermes3", HERMES.revision, "Apache-2.0")
    assert got["hub_files"] == [{"file": HERMES_FILE, "sha256": files.sha256_bytes(DATA)}]
    lock = json.loads((tmp_path / "lock.json").read_bytes())["datasets"]["hermes3"]
    assert lock == {
        "repo": HERMES.repo,
        "revision": HERMES.revision,
        "files": [{"file": HERMES_FILE, "size": len(DATA), "sha256": files.sha256_bytes(DATA)}],
    }


def test_the_revision_is_resolved_once(hub: Hub, tmp_path: Path) -> None:
    """Guards the lock: a second folder asks for the file, and no more for what the lock file says."""
    pull_hermes(tmp_path)
    assert sum("blobs" in line for line in hub.requests) == 1
    (tmp_path / "lock.json").rename(tmp_path / "kept.json")
    (tmp_path / "two").mkdir()
    (tmp_path / "kept.json").rename(tmp_path / "two" / "lock.json")
    pull_hermes(tmp_path / "two")
    assert sum("blobs" in line for line in hub.requests) == 1
    assert left(tmp_path / "raw") == left(tmp_path / "two" / "raw")
    assert manifest(tmp_path) == manifest(tmp_path / "two"), "the same data set must give the same bytes"


@pytest.mark.parametrize("offline", [True, False])
def test_what_is_on_disk_needs_no_network(hub: Hub, tmp_path: Path, offline: bool) -> None:
    """Guards offline work: lock and file suffice, with --offline or without."""
    pull_hermes(tmp_path)
    before = manifest(tmp_path)
    hub.requests.clear()
    pull_hermes(tmp_path, offline=offline)
    assert (hub.requests, manifest(tmp_path)) == ([], before)


def test_redirects_are_followed(hub: Hub, tmp_path: Path) -> None:
    """Guards large files: the real hub answers with the commit and sends on to a CDN that knows nothing of commits."""
    hub.redirect = True
    pull_hermes(tmp_path)
    assert any("/cdn/" in line for line in hub.requests)
    assert stored(tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("redirect", [False, True])
def test_broken_transfers_go_on(hub: Hub, tmp_path: Path, redirect: bool) -> None:
    """Guards slow lines: each request ends early, and the next asks only for what is missing."""
    hub.cut, hub.redirect = 10_000, redirect
    pull_hermes(tmp_path)
    starts = [int(match[1]) for line in transfers(hub) if (match := re.search(r"bytes=(\d+)-", line))]
    assert starts == list(range(10_000, len(DATA), 10_000))
    assert stored(tmp_path).read_bytes() == DATA


def test_a_dead_hub_leaves_a_part_to_go_on_with(hub: Hub, tmp_path: Path) -> None:
    """Guards resume over processes: what came before the failure is not fetched again."""
    hub.cut, hub.status, hub.status_after = 10_000, 503, 5
    fails(tmp_path, kind=Unreachable, says="503, the hub is not well")
    (part,) = [path for path in (tmp_path / "raw" / "download").iterdir() if path.suffix == ".part"]
    have = part.stat().st_size
    assert have in (20_000, 30_000)
    hub.cut = hub.status = 0
    hub.requests.clear()
    pull_hermes(tmp_path)
    assert [line.split()[-1] for line in transfers(hub)] == [f"bytes={have}-"]
    assert left(tmp_path / "raw" / "download") == [HERMES_FILE]


def test_a_hub_without_ranges_starts_again(hub: Hub, tmp_path: Path) -> None:
    """Guards against doubled text: the answer to a range may be the whole file."""
    hub.cut, hub.status, hub.status_after = 10_000, 503, 4
    fails(tmp_path, kind=Unreachable, says="503")
    hub.cut = hub.status = 0
    hub.ranges = False
    pull_hermes(tmp_path)
    assert stored(tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("size", [len(DATA), len(DATA) + 5])
def test_a_full_part_of_other_bytes_is_not_believed(hub: Hub, tmp_path: Path, size: int) -> None:
    """Guards the check of a finished part: neither its length nor its name proves it."""
    pull_hermes(tmp_path)
    stored(tmp_path).unlink()
    (tmp_path / "raw" / "manifest.json").unlink()
    part = stored(tmp_path).with_name(f".{HERMES_FILE}.{files.sha256_bytes(DATA)[:16]}.part")
    part.write_bytes(b"x" * size)
    if size == len(DATA):
        fails(tmp_path, says="with the sha256")
        assert not part.exists()
    pull_hermes(tmp_path)
    assert stored(tmp_path).read_bytes() == DATA


# --- what the hub may do ---------------------------------------------------------------------------------------------


def test_every_failure_says_which_and_how_by_hand(hub: Hub, tmp_path: Path) -> None:
    """Guards the message: data set, place, what to do, and for the way by hand path, size and sha256."""
    hub.status, hub.status_after = 503, 1
    text = fails(tmp_path, kind=Unreachable, says="the data set hermes3 must be reachable")
    for part in (HERMES.path, HERMES.revision, str(stored(tmp_path)), f"{len(DATA):,} bytes", files.sha256_bytes(DATA)):
        assert part in text
    assert "--offline" in text


def test_a_file_put_in_place_by_hand_is_taken_offline(hub: Hub, tmp_path: Path) -> None:
    """Guards the way by hand: doing what the message says works, and only with the right file."""
    hub.status, hub.status_after = 503, 1
    text = fails(tmp_path, says="503")
    path = Path(re.search(r"at (\S+), then pull with --offline", text)[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(DATA[:-1])
    fails_with = pytest.raises(DataError, match=f"must be {HERMES_FILE} of {HERMES.repo}.*sha256")
    with fails_with:
        pull_hermes(tmp_path, offline=True)
    path.write_bytes(DATA[:-2] + b"?\n")
    with fails_with:
        pull_hermes(tmp_path, offline=True)
    path.write_bytes(DATA)
    pull_hermes(tmp_path, offline=True)
    assert manifest(tmp_path)["buckets"]["general"]["documents"] == 100


def test_offline_without_lock_or_file(hub: Hub, tmp_path: Path) -> None:
    assert "pull once without --offline" in fails(tmp_path, kind=Unreachable, says="has no entry", offline=True)
    hub.status, hub.status_after = 503, 1
    fails(tmp_path, says="503")
    fails(tmp_path, kind=Unreachable, says="the file is not on this disk", offline=True)
    assert left(tmp_path) == ["lock.json"]


def test_a_shorter_file_is_refused_before_its_first_byte(hub: Hub, tmp_path: Path) -> None:
    """Guards against hours of a wrong download: the answer's length is compared with the lock first."""
    hub.short = 7
    fails(tmp_path, says="the hub must have .* as it was locked")
    assert left(tmp_path) == ["lock.json"]


def test_other_bytes_are_refused_and_removed(hub: Hub, tmp_path: Path) -> None:
    hub.flip = True
    fails(tmp_path, says="with the sha256")
    assert left(tmp_path) == ["lock.json"]


def test_another_commit_is_refused(hub: Hub, tmp_path: Path) -> None:
    """Guards the pin on the transfer itself: a mirror that serves main under every name is found out."""
    hub.commit_header = "0" * 40
    fails(tmp_path, says="X-Repo-Commit: 0000")
    assert left(tmp_path) == ["lock.json"]


def test_missing_revision_repository_and_file(hub: Hub, tmp_path: Path) -> None:
    repo = hub.repos[HERMES.repo]
    repo.commit = "1" * 40
    fails(tmp_path, kind=Unreachable, says="no such revision")
    repo.commit = HERMES.revision
    repo.files["other.jsonl"] = repo.files.pop(HERMES_FILE)
    fails(tmp_path, says=r"no hermes-3-dataset.jsonl, but the files .*other.jsonl")
    del hub.repos[HERMES.repo]
    fails(tmp_path, kind=Unreachable, says="the hub knows no such data set")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("sent", "says"), [("", "gated, and no token was sent"), ("hf_wrong", "gated, and its token was refused")]
)
def test_gated_without_the_right_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str, says: str) -> None:
    with serve(DATA, token="hf_right") as hub, led_to(hub.url, monkeypatch, token=sent):
        assert "set HF_TOKEN" in fails(tmp_path, kind=Unreachable, says=says)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        pull_hermes(tmp_path)


def test_the_token_stays_with_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the user's token: a CDN on another host must not get it (and refuses signed requests that bring one)."""
    with serve(DATA, token="hf_right", redirect=True) as hub, led_to(hub.url, monkeypatch, token="hf_right"):
        pull_hermes(tmp_path)
        assert any("/cdn/" in line for line in hub.requests)


def test_too_many_requests_names_the_wait(hub: Hub, tmp_path: Path) -> None:
    hub.status = 429
    assert "in 17 s" in fails(tmp_path, kind=Unreachable, says="429, too many requests")
    assert len(hub.requests) == 1, "a hub that asks for patience must not be asked again"


def test_a_closed_port_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against the library's 24 s of retries."""
    with serve(DATA) as hub:
        pass
    with led_to(hub.url, monkeypatch):
        fails(tmp_path, kind=Unreachable, says="no connection")
    assert left(tmp_path) == []


def test_a_slow_hub_is_given_up(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.delay = 1.0
    monkeypatch.setattr(hub_module, "PROBE_SECONDS", 0.2)
    fails(tmp_path, kind=Unreachable, says="no answer in time")


def test_a_page_instead_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """Guards hotel networks: a login page with status 200 is not repository facts."""
    hub.html = True
    fails(tmp_path, says="an answer that is not the hub's")


def test_the_library_told_to_stay_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE" in fails(tmp_path, kind=Unreachable, says="HF_HUB_OFFLINE is set")


# --- what this machine may do ----------------------------------------------------------------------------------------


def test_too_small_a_disk_is_found_before_the_first_byte(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": len(DATA)})  # room for the file, not for file and shards
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    fails(tmp_path, kind=StorageError, says="the data set hermes3 needs")
    assert transfers(hub) == []


def test_a_disk_that_fills_up_gets_its_room_back(hub: Hub, tmp_path: Path) -> None:
    """Guards the failure that no check can foresee. /dev/full is a disk without room: the system's own ENOSPC."""
    part = stored(tmp_path).with_name(f".{HERMES_FILE}.{files.sha256_bytes(DATA)[:16]}.part")
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    fails(tmp_path, kind=StorageError, says="must be writable")
    assert not os.path.lexists(part)
    pull_hermes(tmp_path)


def test_one_pull_at_a_time(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards partial files: two processes appending to one would ruin it."""
    with pull_module._alone(tmp_path / "raw"):
        fails(tmp_path, kind=RunError, says="one pull at a time")
    pull_hermes(tmp_path)
