"""Rows of a dictionary as documents: one headword with all its senses, as a question and its answer.

A row is one sense: a word, its definition, perhaps an example. Rows of one word are gathered, wherever they stand, in
the order of the first. The form is the original's: the user says `define <word>`, the reply begins with the word.

    > define scurf
    < scurf: thin flakes of skin (example: his collar was white with scurf)

    > define bank
    < bank:
    1. sloping land beside water (example: they pulled the canoe up on the bank)
    2. a long ridge or pile

The whole dictionary is in memory: with 185,000 senses the process takes 139 MB.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from andrea.errors import DataError
from andrea.sources.catalogue import ALL
from andrea.sources.feed import Item
from andrea.sources.jsonl import DAMAGED
from andrea.sources.records import Rejected, parse

COLUMNS = ("Word", "Definition", "Example")


class Sense(NamedTuple):
    """One meaning of a word; `example` is empty where there is none."""

    word: str
    definition: str
    example: str


def senses(paths: Iterable[Path]) -> Iterator[Sense]:
    """The rows of CSV files with the columns COLUMNS, among others, blanks made single. DataError for another file."""
    for path in paths:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            rows, end = csv.DictReader(file, strict=True), 0  # else an open quote takes in the rows behind it
            try:
                if not set(COLUMNS) <= set(rows.fieldnames or ()):
                    raise csv.Error(f"the columns {rows.fieldnames}")
                end = rows.line_num
                for row in rows:
                    yield Sense(*(" ".join((row[column] or "").split()) for column in COLUMNS))
                    end = rows.line_num
            except csv.Error as cause:
                must = f"{path} must be CSV with the columns {', '.join(COLUMNS)}"
                got = f"{cause}, in the row that begins at line {end + 1:,}"
                fix = "check the quotes there, and `files` and `form` in sources.yaml"
                raise DataError(must, got=got, fix=fix) from cause


def items(found: Iterable[Sense]) -> Iterator[Item]:
    """One item a dropped sense, then one a headword; sizes are senses."""
    words: dict[str, dict[str, str]] = {}  # word -> definition -> example
    for word, definition, example in found:
        known = words.get(word, {})
        if not word or not definition:
            yield Item(1, ALL, None, "a sense without word or definition")
        elif "\ufffd" in word + definition + example:
            yield Item(1, ALL, None, DAMAGED)
        elif definition in known:
            yield Item(1, ALL, None, "a definition for the second time")
        else:
            words.setdefault(word, {})[definition] = example.strip('"')
    for word, meanings in words.items():
        turns = [{"role": "user", "text": f"define {word}"}, {"role": "reply", "text": reply(word, meanings)}]
        try:
            yield Item(len(meanings), ALL, parse({"turns": turns}))
        except Rejected as cause:
            yield Item(len(meanings), ALL, None, cause.reason)


def reply(word: str, meanings: dict[str, str]) -> str:
    """The answer to `define <word>`; more than one meaning are numbered, a line each."""
    examples = [f" (example: {example})" if example else "" for example in meanings.values()]
    lines = list(map("".join, zip(meanings, examples, strict=True)))
    if len(lines) == 1:
        return f"{word}: {lines[0]}"
    return "\n".join([f"{word}:", *(f"{number}. {line}" for number, line in enumerate(lines, 1))])
