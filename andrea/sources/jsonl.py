"""A hub data set's JSONL file as a feed: every line that is no conversation is counted and dropped, with its reason."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from andrea.megachat import Document
from andrea.sources import hermes
from andrea.sources.catalogue import ALL, Dataset
from andrea.sources.feed import Feed, Item
from andrea.sources.lockfile import Locked
from andrea.sources.records import Rejected, parse_line
from andrea.sources.rows import local_lines

BucketRule = Callable[[Document], str]
DAMAGED = "U+FFFD: bytes that are no UTF-8"


def feed(dataset: Dataset, path: Path, locked: Locked) -> Feed:
    """The feed of a file that was checked against the lock."""
    facts = {"repo": locked.repo, "file": locked.file, "sha256": locked.sha256}
    return Feed(locked.sha256, items(local_lines(path), bucket_rule(dataset)), locked.size, "bytes", facts)


def bucket_rule(dataset: Dataset) -> BucketRule:
    """How documents of this data set are sorted into its buckets."""
    return hermes.bucket if dataset.buckets == hermes.BUCKETS else lambda _: ALL


def items(lines: Iterable[str], rule: BucketRule) -> Iterator[Item]:
    """One item a line; sizes are bytes of UTF-8."""
    for line in lines:
        size = len(line.encode()) + 1
        try:
            if "\ufffd" in line:
                raise Rejected(DAMAGED)
            parsed = parse_line(line)
        except Rejected as cause:
            yield Item(size, "", None, cause.reason)
        else:
            yield Item(size, rule(parsed.document), parsed)
