"""Synthetic chat: 4,000 small conversations that ANDREA writes itself, from word lists and wordings (synthetic.yaml).

A document is an opening, one to four topics and a closing, with two to about a dozen exchanges: small talk, sums, days
and months, animals, colours, plain definitions, word games, riddles, little stories, and whether the reply remembers the
user's name. What can be right or wrong is right: answers come from a table or are computed (talkrows.py). One user in
six types without capitals and full stops.

Document i is a function of i and of the files here alone, and no two are equal.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files as resource
from typing import Any

import yaml

from andrea.files import sha256_bytes
from andrea.megachat import Conversation, Turn, encode
from andrea.sources.catalogue import ALL
from andrea.sources.feed import Feed, Item
from andrea.sources.records import Parsed
from andrea.sources.talkrows import COMPUTED, PICKED, Draw, Row, letters

DOCUMENTS = 4000


def feed() -> Feed:
    """The feed of the generator."""
    items = (Item(1, ALL, Parsed(document, 0)) for document in documents(DOCUMENTS))
    return Feed(sha256_bytes(f"{DOCUMENTS}".encode()), items, DOCUMENTS, "documents")


def documents(count: int) -> Iterator[Conversation]:
    """The first `count` documents."""
    seen: set[str] = set()
    for number in range(count):
        attempt = 0
        while (text := encode(document := conversation(number, attempt))) in seen:
            attempt += 1
        seen.add(text)
        yield document


def conversation(number: int, attempt: int) -> Conversation:
    """Document `number`; further attempts are for when an earlier document is equal."""
    draw, talk = Draw("synthetic-chat", number, attempt), _talk()
    named = draw.chance(40)
    row = {"name": draw.one(talk["names"])} if named else {}
    kind = "named" if named else "plain"
    said: list[str] = []
    if named or draw.chance(60):
        said += _say(draw, draw.one(talk["openings"][kind]), row)
    for place, topic in enumerate(draw.some(sorted(talk["topics"]), draw.between(1, 4))):
        said += _topic(draw, talk, talk["topics"][topic], first=place == 0)
    if draw.chance(60):
        said += _say(draw, draw.one(talk["closings"][kind]), row)
    if draw.chance(16):
        said[::2] = [_casual(text) for text in said[::2]]
    roles = ("user", "reply")
    return Conversation(tuple(Turn(roles[i % 2], text) for i, text in enumerate(said)))  # type: ignore[arg-type]


def _topic(draw: Draw, talk: dict[str, Any], topic: dict[str, Any], *, first: bool) -> list[str]:
    """A question about one row of a topic, its answer, and what follows from it."""
    row = _row(draw, talk, topic["rows"]) if "rows" in topic else {}
    user, reply, *more = _say(draw, draw.one(topic["ask"]), row)
    if not first and draw.chance(25):
        user = draw.one(talk["user_leads"]) + user
    if not topic.get("chatty") and draw.chance(12):
        reply = draw.one(talk["reply_leads"]) + reply
    then = topic.get("then", [])
    count = min(len(then), max(draw.one((0, 0, 1, 1, 2)), int(topic.get("always", False))))
    follow = [text for exchange in draw.some(then, count) for text in _say(draw, exchange, row)]
    return [user, reply, *more, *follow]


def _row(draw: Draw, talk: dict[str, Any], name: str) -> Row:
    if name in COMPUTED:
        return COMPUTED[name](draw)
    if name in PICKED:
        return PICKED[name](draw, talk)
    table = talk["tables"][name]
    row = {key: str(value) for key, value in zip(table["keys"], draw.one(table["rows"]), strict=True)}
    return {**row, **letters(row["word"])} if "word" in row else row


def _say(draw: Draw, exchange: list[str], row: Row) -> list[str]:
    """One wording of each part of an exchange, its slots filled."""
    slots = _Slots(row)
    return [draw.one(wordings.split("|")).format_map(slots) for wordings in exchange]


class _Slots(dict[str, str]):
    """The slots of a row, with {a_x} for "a x" or "an x", and {X} and {A_x} with a capital."""

    def __missing__(self, key: str) -> str:
        if key.startswith("a_"):
            value = self[key[2:]]
            return f"{'an' if value[0] in 'aeiou' else 'a'} {value}"
        value = self[key[0].lower() + key[1:]] if key[0].isupper() else super().__getitem__(key)
        return value[0].upper() + value[1:]


def _casual(text: str) -> str:
    return text.lower().removesuffix(".").removesuffix("?").removesuffix("!")


@cache
def _talk() -> dict[str, Any]:
    text = (resource(__package__) / "synthetic.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]
