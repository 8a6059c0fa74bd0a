"""The conversations that the package chitchat-dataset ships, as a feed: people chatting, by the BYU PCC lab, 2018.

Only conversations of two speakers are taken. The first speaker is the user; consecutive messages of one speaker are one
turn, joined by a line end; empty messages are left out. A conversation that ends with the user stays as it is: the
model learns both sides of it, and in sampling a reply is always opened by us, so that last turn does no harm.

Version and data file must be the pinned ones: the catalogue holds the sha256.
"""

import itertools
import json
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files as resource
from typing import Any

from andrea.errors import DataError
from andrea.files import sha256_bytes
from andrea.sources.catalogue import ALL, Dataset
from andrea.sources.feed import Feed, Item
from andrea.sources.records import Rejected, parse


def feed(dataset: Dataset) -> Feed:
    """The feed of the installed package. Raises DataError unless it is the pinned version with the pinned text."""
    fix = f"pip install {dataset.package}=={dataset.revision}"
    try:
        installed = version(dataset.package)
    except PackageNotFoundError as cause:
        raise DataError(f"the package {dataset.package} must be installed", got="no such package", fix=fix) from cause
    if installed != dataset.revision:
        raise DataError(f"{dataset.package} must be version {dataset.revision}", got=installed, fix=fix)
    data = (resource(dataset.module) / dataset.file).read_bytes()
    if sha256_bytes(data) != dataset.sha256:
        must = f"{dataset.file} of {dataset.package} must have the sha256 {dataset.sha256}"
        raise DataError(must, got=sha256_bytes(data), fix=f"{fix} --force-reinstall")
    talks = list(json.loads(data).values())
    return Feed(dataset.sha256, _items(talks), len(talks), "conversations", {"package": dataset.package})


def _items(talks: list[Any]) -> Iterator[Item]:
    for talk in talks:
        try:
            yield Item(1, ALL, parse({"turns": _turns(talk)}))
        except Rejected as cause:
            yield Item(1, ALL, None, cause.reason)


def _turns(talk: Any) -> list[dict[str, str]]:
    """The turns of one conversation of the package: {"messages": [[{"text", "sender", ...}, ...], ...]}."""
    said = [message for group in talk["messages"] for message in group if message["text"].strip()]
    speakers = list(dict.fromkeys(message["sender"] for message in said))
    if len(speakers) != 2:
        raise Rejected("not two speakers")
    return [
        {"role": "user" if sender == speakers[0] else "reply", "text": "\n".join(message["text"] for message in group)}
        for sender, group in itertools.groupby(said, key=lambda message: message["sender"])
    ]
