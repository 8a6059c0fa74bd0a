"""The package's conversations: two speakers, merged turns, and only the pinned text."""

import dataclasses

import pytest

from andrea.errors import DataError
from andrea.megachat import Conversation, Turn
from andrea.sources import chitchat
from andrea.sources.catalogue import find_dataset

PINNED = find_dataset("chitchat")


def message(sender: str, text: str) -> dict[str, str]:
    return {"sender": sender, "text": text}


def test_turns_are_merged_by_speaker() -> None:
    """Guards the form: consecutive messages are one turn, across the package's own groups; empty ones are left out."""
    groups = [
        [message("x", "hi"), message("x", "how?")],
        [message("x", "so?")],
        [message("y", "ok")],
        [message("x", " ")],
    ]
    (item,) = chitchat._items([{"messages": groups}])
    assert item.parsed is not None
    assert item.parsed.document == Conversation((Turn("user", "hi\nhow?\nso?"), Turn("reply", "ok")))


@pytest.mark.parametrize("senders", ["x", "xyz", ""])
def test_other_than_two_speakers_are_dropped(senders: str) -> None:
    (item,) = chitchat._items([{"messages": [[message(sender, "hi")] for sender in senders]}])
    assert (item.parsed, item.reason) == (None, "not two speakers")


def test_the_installed_package() -> None:
    """Guards the counts that the documentation states."""
    feed = chitchat.feed(PINNED)
    items = list(feed.items)
    kept = [item.parsed.document for item in items if item.parsed]
    assert (len(items), len(kept)) == (7168, 4017)
    assert all(isinstance(document, Conversation) and document.turns[0].role == "user" for document in kept)
    assert sum(a.role == b.role for d in kept for a, b in zip(d.turns, d.turns[1:], strict=False)) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"revision": "0.9.1"},
            r"must be version 0\.9\.1\n  got: 0\.9\.0\n  fix: pip install chitchat-dataset==0\.9\.1",
        ),
        ({"package": "no-such-package-here"}, "must be installed"),
        ({"sha256": "0" * 64}, "must have the sha256 0000"),
    ],
)
def test_only_the_pinned_text_is_taken(change: dict[str, str], says: str) -> None:
    """Guards reproducibility: another version, or an edited file in the environment, is an error and not other text."""
    with pytest.raises(DataError, match=says):
        chitchat.feed(dataclasses.replace(PINNED, **change))
