"""OpenAssistant's message trees as conversations: one a tree, along the best-ranked messages.

A message is a row; `parent_id` names what it answers, and roots have none. Only messages in English that are not
deleted count, so a tree ends where the language changes. From the root, each step goes to the child of the lowest
`rank` (0 is the best; a child without a rank comes after all that have one, and file order decides among equals). What
volunteers ranked are replies; follow-up prompts mostly have no rank, so there the first one is taken. The way ends with
the last reply on it: a prompt that nobody answered is left off.

One conversation a tree, and not one a leaf: conversations of one tree begin alike, and as the split goes by the whole
text, some of them would be held out while their beginnings are trained on. The price is the other branches' text.

All English messages are in memory at once: some 60,000 of them, 100 MB.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from andrea.sources.catalogue import ALL
from andrea.sources.feed import Item
from andrea.sources.records import Rejected, parse

COLUMNS = ("message_id", "parent_id", "text", "role", "lang", "deleted", "rank")
LANGUAGE = "en"
_LAST = 1 << 30  # the rank of what has none


class _Message(NamedTuple):
    ident: str
    role: str
    text: str
    rank: int


def items(rows: Iterable[dict[str, Any]]) -> Iterator[Item]:
    """One item a dropped message, then one a tree; sizes are messages."""
    seen: set[str] = set()
    children: dict[str | None, list[_Message]] = {}
    for row in rows:
        try:
            message = _message(row, seen)
        except Rejected as cause:
            yield Item(1, ALL, None, cause.reason)
        else:
            seen.add(message.ident)
            children.setdefault(row["parent_id"], []).append(message)
    yield from _trees(children)


def _message(row: dict[str, Any], seen: set[str]) -> _Message:
    """The row's message; raises Rejected. An id counts once, so that no way through the trees comes back to itself."""
    ident, parent, rank = row["message_id"], row["parent_id"], row["rank"]
    if row["lang"] != LANGUAGE:
        raise Rejected("not in English")
    if row["deleted"]:
        raise Rejected("deleted")
    if not isinstance(ident, str) or not isinstance(parent, str | None) or not isinstance(rank, int | float | None):
        raise Rejected("a message without id, parent or rank of the right type")
    if ident in seen:
        raise Rejected("a message id for the second time")
    return _Message(ident, row["role"], row["text"], _LAST if rank is None or rank != rank else int(rank))


def _trees(children: dict[str | None, list[_Message]]) -> Iterator[Item]:
    used = 0
    for root in children.get(None, []):
        way = _way(root, children)
        used += len(way)
        try:
            yield Item(len(way), ALL, parse({"messages": [{"role": m.role, "content": m.text} for m in way]}))
        except Rejected as cause:
            yield Item(len(way), ALL, None, f"a tree with {cause.reason}")
    for _ in range(sum(map(len, children.values())) - used):
        yield Item(1, ALL, None, "on another branch than the best")


def _way(root: _Message, children: dict[str | None, list[_Message]]) -> list[_Message]:
    """From the root along the best child of each, up to the last reply (or the root alone)."""
    way = [root]
    while answers := children.get(way[-1].ident):
        way.append(min(answers, key=lambda message: message.rank))
    while len(way) > 1 and way[-1].role == "prompter":
        way.pop()
    return way
