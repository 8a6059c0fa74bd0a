"""The lock file: what was pinned stays pinned, and a damaged file is named."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubcases import HERMES, HERMES_FILE, jsonl, led_to, pull_hermes, rows, serve
from hubstub import Hub

from andrea.errors import DataError

DATA = jsonl(rows(30))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(DATA) as hub, led_to(hub.url, monkeypatch):
        yield hub


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("{", "the lock file must be JSON", id="not JSON"),
        pytest.param('{"datasets": {"hermes3": {}}}', "must hold repo, revision", id="no fields"),
        pytest.param('{"datasets": {"hermes3": [1]}}', "must hold repo, revision", id="a list"),
        pytest.param('{"datasets": {"hermes3": {"files": [7]}}}', "must hold repo, revision", id="no file"),
        pytest.param(
            json.dumps(
                {
                    "datasets": {
                        "hermes3": {"repo": "", "revision": "", "files": [{"file": "", "size": 1.5, "sha256": "x"}]}
                    }
                }
            ),
            "must hold repo, revision",
            id="wrong types",
        ),
    ],
)
def test_a_damaged_lock_file_is_named(hub: Hub, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(DataError, match=says):
        pull_hermes(tmp_path)
    assert hub.requests == []


def test_a_new_pin_gets_a_new_lock_entry_beside_the_others(hub: Hub, tmp_path: Path) -> None:
    """Guards pins that move: an entry of another revision is not believed, and entries of other data sets stay."""
    file = {"file": HERMES_FILE, "size": 1, "sha256": "0" * 64}
    old = {"repo": HERMES.repo, "revision": "0" * 40, "files": [file]}
    (tmp_path / "lock.json").write_text(json.dumps({"datasets": {"other": {"x": 1}, "hermes3": old}}))
    pull_hermes(tmp_path)
    entries = json.loads((tmp_path / "lock.json").read_bytes())["datasets"]
    assert entries["other"] == {"x": 1}
    assert entries["hermes3"]["files"][0]["size"] == len(DATA)
