"""A small Hermes-3 for tests, a hub that serves it, and the settings that lead the hub's library there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hubstub import Hub, Repo
from huggingface_hub import constants

from andrea.sources import hub as hub_module
from andrea.sources.catalogue import find_dataset
from andrea.sources.pull import pull

HERMES = find_dataset("hermes3")
HERMES_FILE = HERMES.files[0]


def row(human: str, reply: str, system: str = "") -> dict[str, Any]:
    """A conversation as Hermes-3 writes it."""
    said = [("system", system)] if system else []
    return {"conversations": [{"from": who, "value": text} for who, text in [*said, ("human", human), ("gpt", reply)]]}


def rows(count: int) -> list[dict[str, Any]]:
    """Conversations of all three buckets, every one different."""
    kinds = [("Write a poem about {}.", ""), ("What is {} plus 1?", ""), ("Hello {}!", "You are Ada Lovelace, a poet.")]
    return [row(kinds[i % 3][0].format(i), f"Answer {i}: {'x' * (i % 50)}", kinds[i % 3][1]) for i in range(count)]


def jsonl(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def serve(data: bytes, **settings: Any) -> Hub:
    """A hub whose Hermes-3 is `data`, at the pinned commit."""
    return Hub({HERMES.repo: Repo({HERMES_FILE: data, "README.md": b"# x"}, HERMES.revision)}, **settings)


@contextmanager
def led_to(url: str, monkeypatch: pytest.MonkeyPatch, token: str = "") -> Iterator[None]:
    """Lead the hub's library to `url`, with short waits, past any proxy and any token of the machine."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)
    monkeypatch.setattr(hub_module, "WAITS", (0.01, 0.01))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_TOKEN", token)
    huggingface_hub.close_session()  # the next session reads the environment anew
    yield
    huggingface_hub.close_session()


def pull_hermes(folder: Path, *, offline: bool = False) -> None:
    """Pull Hermes-3 into folder/raw with the lock file folder/lock.json."""
    pull("hermes3", folder / "raw", lock=folder / "lock.json", offline=offline, files=None)


def stored(folder: Path) -> Path:
    """Where the pulled file must lie."""
    return folder / "raw" / "download" / HERMES_FILE
