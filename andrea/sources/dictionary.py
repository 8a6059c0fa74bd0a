"""Rows of a dictionary as documents: one headword with all its senses, as question and answer.

A row is one sense: a word, its definition, and perhaps an example. Rows of one word are gathered wherever they stand,
in the order of their first row. As the original's dictionary, a document is the user's `define <word>` and a reply that
begins with the word; several senses are numbered, one a line:

    > define bank
    < bank:
    1. sloping land beside water. Example: "they pulled the canoe up on the bank"
    2. a building in which the business of banking is transacted

The whole dictionary is in memory: some 10 MB.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from andrea.errors import DataError
from andrea.sources.catalogue import ALL
from andrea.sources.feed import Item
from andrea.sources.records import Rejected, parse

WORD, DEFINITION, EXAMPLE = COLUMNS = ("Word", "Definition", "Example")
LONGEST = 10_000  # characters of a field; csv's own limit is 131,072


class Sense(NamedTuple):
    word: str
    definition: str
    example: str  # empty where there is none


def items(senses: Iterable[Sense]) -> Iterator[Item]:
    """One item a dropped sense, then one a headword; sizes are senses."""
    words: dict[str, list[Sense]] = {}
    for sense in senses:
        word, definition = sense.word.strip(), sense.definition.strip()
        if not word or not definition:
            yield Item(1, ALL, None, "a sense without word or definition")
        elif max(map(len, sense)) > LONGEST:
            yield Item(1, ALL, None, f"a field of more than {LONGEST:,} characters")
        else:
            words.setdefault(word, []).append(Sense(word, definition, sense.example.strip()))
    for word, found in words.items():
        try:
            yield Item(len(found), ALL, parse({"messages": entry(word, found)}))
        except Rejected as cause:
            yield Item(len(found), ALL, None, cause.reason)
