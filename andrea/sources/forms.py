"""What the files of a hub data set hold, by the `form` of its catalogue entry: each form makes items of files.

jsonl      a conversation or a prose text a line (jsonl.py)
messages   Parquet with a conversation a row, column "messages": [{"role", "content"}]
oasst      Parquet with a message a row, which make trees (oasst.py)
books      Parquet with a book a row, column "text", which is cut into documents (books.py)
dictionary CSV with a sense a row, columns "Word", "Definition", "Example", which make headwords (dictionary.py)
"""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from andrea.errors import DataError
from andrea.megachat import Document
from andrea.sources import books, dictionary, hermes, jsonl, oasst
from andrea.sources.catalogue import ALL, Dataset
from andrea.sources.feed import Feed, Item
from andrea.sources.lockfile import Locked
from andrea.sources.records import Rejected, parse
from andrea.sources.rows import lines, local_url, records

BucketRule = Callable[[Document], str]
MESSAGE_ROWS = 500  # of Parquet in memory at a time
BOOK_ROWS = 8
_UNITS = {"messages": "rows", "oasst": "messages", "books": "books", "dictionary": "senses"}


def feed(dataset: Dataset, paths: list[Path], locked: Locked) -> Feed:
    """The feed of files that were checked against the lock."""
    files = [{"file": file.file, "sha256": file.sha256} for file in locked.files]
    facts = {"repo": locked.repo, "hub_files": files}
    if dataset.form == "dictionary":
        stream = dictionary.items(dictionary.senses(paths))
    else:
        stream = items(dataset, [local_url(path) for path in paths])
    if dataset.form == "jsonl":
        return Feed(locked.key, stream, locked.size, "bytes", facts)
    return Feed(locked.key, stream, 0, _UNITS[dataset.form], facts)


def items(dataset: Dataset, urls: list[str]) -> Iterator[Item]:
    """The items of all files that are read by URL, one file after the other."""
    rule = bucket_rule(dataset)
    if dataset.form == "jsonl":
        return chain.from_iterable(jsonl.items(lines(url), rule) for url in urls)
    if dataset.form == "messages":
        return chain.from_iterable(_conversations(url, rule) for url in urls)
    if dataset.form == "oasst":
        rows = chain.from_iterable(records(url, oasst.COLUMNS, MESSAGE_ROWS) for url in urls)
        return oasst.items(rows)
    return chain.from_iterable(books.items(records(url, books.COLUMNS, BOOK_ROWS)) for url in urls)


def bucket_rule(dataset: Dataset) -> BucketRule:
    """How documents of this data set are sorted into its buckets."""
    rules: dict[tuple[str, ...], BucketRule] = {hermes.BUCKETS: hermes.bucket, (ALL,): lambda _: ALL}
    if dataset.buckets not in rules:
        must = f"sources.yaml: the buckets of {dataset.name} must be {list(hermes.BUCKETS)} or [{ALL}]"
        raise DataError(must, got=list(dataset.buckets), fix="write a rule for others beside andrea/sources/hermes.py")
    return rules[dataset.buckets]


def _conversations(url: str, rule: BucketRule) -> Iterator[Item]:
    for row in records(url, ("messages",), MESSAGE_ROWS):
        try:
            parsed = parse(row)
        except Rejected as cause:
            yield Item(1, "", None, cause.reason)
        else:
            yield Item(1, rule(parsed.document), parsed)
