"""Books as documents of bounded length, cut at paragraph ends.

A paragraph ends at an empty line; its own line breaks stay, as they carry verse. Paragraphs are gathered while they fit
into PIECE characters, about what one context holds. A longer paragraph is cut after the last sentence that fits, else
at the last blank, else anywhere. What Project Gutenberg puts before and after a book is left out: everything outside of
its lines `*** START OF ...` and `*** END OF ...`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from andrea.sources.catalogue import ALL
from andrea.sources.feed import Item
from andrea.sources.records import Rejected, parse

COLUMNS = ("text",)
PIECE = 4000
_START = re.compile(r"^[ \t]*\*\*\* ?START OF[^\n]*\n", re.MULTILINE | re.IGNORECASE)
_END = re.compile(r"^[ \t]*(?:\*\*\* ?END OF|End of (?:the )?Project Gutenberg)", re.MULTILINE | re.IGNORECASE)
_GAP = re.compile(r"\n(?:[ \t]*\n)+")
_SENTENCE = re.compile(r"[.!?][\"'\u201d\u2019)]*\s")


def items(rows: Iterable[dict[str, Any]]) -> Iterator[Item]:
    """The documents of each book, in order; sizes are books."""
    for row in rows:
        size = 1
        try:
            for piece in pieces(_book(row["text"])):
                yield Item(size, ALL, parse({"text": piece}))
                size = 0
        except Rejected as cause:
            yield Item(size, ALL, None, cause.reason)
            size = 0
        if size:
            yield Item(size, ALL, None, "empty text")


def _book(raw: Any) -> str:
    """The book itself, with Unix line ends."""
    if not isinstance(raw, str):
        raise Rejected('"text" is not a string')
    text: str = raw.replace("\r\n", "\n").replace("\r", "\n")
    start = _START.search(text)
    first = start.end() if start else 0
    end = _END.search(text, first)
    return text[first : end.start() if end else len(text)]


def pieces(text: str) -> Iterator[str]:
    """The text as pieces of at most PIECE characters, each of whole paragraphs where that is possible."""
    gathered = ""
    for paragraph in _GAP.split(text):
        for part in _parts(paragraph.strip("\n").rstrip()):
            if gathered and len(gathered) + 2 + len(part) > PIECE:
                yield gathered
                gathered = ""
            gathered = f"{gathered}\n\n{part}" if gathered else part
    if gathered:
        yield gathered


def _parts(paragraph: str) -> Iterator[str]:
    """A paragraph, or what a longer one is cut into."""
    while len(paragraph) > PIECE:
        ends = [match.end() for match in _SENTENCE.finditer(paragraph, 0, PIECE)]
        cut = ends[-1] if ends else paragraph.rfind(" ", 0, PIECE) + 1 or PIECE
        yield paragraph[:cut].rstrip()
        paragraph = paragraph[cut:].lstrip()
    if paragraph.strip():
        yield paragraph
