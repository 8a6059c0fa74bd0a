"""JSON values from outside -> documents, or the reason why not.

Four forms are understood: {"turns": [{"role", "text"}]} (ours), {"conversations": [{"from", "value"}]} and
{"messages": [{"role", "content"}]} (chat data sets), {"text"} (prose). Our own form knows no system prompts: as
megachat has only two sides, a system prompt is put in front of the user turn that follows it, with an empty line
between; before a reply it becomes a user turn of its own.

Lone surrogates (JSON can spell them, UTF-8 cannot) become U+FFFD; `Parsed.replaced` counts them.
"""

import json
import re
from typing import Any, NamedTuple

from andrea.megachat import Conversation, Document, Prose, Role, Turn

_SURROGATES = re.compile("[\ud800-\udfff]")
_FORMS = {"turns": ("role", "text"), "conversations": ("from", "value"), "messages": ("role", "content")}
_ROLES: dict[str, Role | None] = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "reply": "reply",
    "assistant": "reply",
    "gpt": "reply",
    "bot": "reply",
    "model": "reply",
    "system": None,
}
_OURS: dict[str, Role] = {"user": "user", "reply": "reply"}
_KEYS = ", ".join(f'"{key}"' for key in (*_FORMS, "text"))


class Rejected(Exception):
    """A record that is no document. `reason` is one of a few, so that it can be counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Parsed(NamedTuple):
    """A document and how many characters of it had to be replaced."""

    document: Document
    replaced: int


def parse_line(line: str) -> Parsed:
    """One line of JSONL; raises Rejected."""
    if not line.strip():
        raise Rejected("empty line")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise Rejected("not JSON") from cause
    return parse(value)


def parse(value: Any) -> Parsed:
    """One JSON value in any of the four forms; raises Rejected."""
    if not isinstance(value, dict):
        raise Rejected("not a JSON object")
    for key, (role_key, text_key) in _FORMS.items():
        if key in value:
            return _conversation(value[key], role_key, text_key)
    if "text" not in value:
        raise Rejected(f"none of the keys {_KEYS}")
    return _prose(value["text"])


def to_line(document: Document) -> bytes:
    """The document as one line of our own form, with its line end."""
    if isinstance(document, Prose):
        value: dict[str, Any] = {"text": document.text}
    else:
        value = {"turns": [{"role": role, "text": text} for role, text in document.turns]}
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def from_line(line: bytes) -> Document:
    """The document of one line that `to_line` wrote; raises Rejected for any other line."""
    try:
        value = json.loads(line.decode())
        if "text" in value:
            return Prose("" + value["text"])
        roles = [_OURS[turn["role"]] for turn in value["turns"]]
        texts = [turn["text"] for turn in value["turns"]]
        "".join(texts)  # a TypeError unless all are strings, for next to nothing
        return Conversation(tuple(map(Turn, roles, texts)))
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise Rejected(f"not a line of a raw shard: {cause!r}") from cause


def _prose(text: Any) -> Parsed:
    if not isinstance(text, str):
        raise Rejected('"text" is not a string')
    if not text.strip():
        raise Rejected("empty text")
    clean, replaced = _clean(text)
    return Parsed(Prose(clean), replaced)


def _conversation(messages: Any, role_key: str, text_key: str) -> Parsed:
    if not isinstance(messages, list):
        raise Rejected("turns are not a list")
    turns: list[Turn] = []
    system: list[str] = []
    replaced = 0
    for message in messages:
        role, text = _message(message, role_key, text_key)
        text, count = _clean(text)
        replaced += count
        if role is None:
            system.append(text)
            continue
        if system and role == "reply":
            turns.append(Turn("user", "\n\n".join(system)))
        elif system:
            text = "\n\n".join([*system, text])
        turns.append(Turn(role, text))
        system = []
    if system or not turns:
        raise Rejected("a system prompt that nothing follows" if system else "no turns")
    return Parsed(Conversation(tuple(turns)), replaced)


def _message(message: Any, role_key: str, text_key: str) -> tuple[Role | None, str]:
    """(role, text) of one message; the role None is a system prompt."""
    if not isinstance(message, dict):
        raise Rejected("a turn is not an object")
    role, text = message.get(role_key), message.get(text_key)
    if not isinstance(role, str) or not isinstance(text, str):
        raise Rejected(f'a turn has no strings "{role_key}" and "{text_key}"')
    if role not in _ROLES:
        raise Rejected("a turn of an unknown role")
    if not text.strip():
        raise Rejected("an empty turn")
    return _ROLES[role], text


def _clean(text: str) -> tuple[str, int]:
    return (text, 0) if text.isascii() else _SURROGATES.subn("\ufffd", text)
