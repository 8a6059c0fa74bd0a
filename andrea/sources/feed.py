"""What every kind of data set gives to the pull: a stream of documents and dropped records, and facts about it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from andrea.sources.records import Parsed


class Item(NamedTuple):
    """One record: a document for a bucket, or, with `parsed` None, the reason why it is dropped."""

    size: int  # in the feed's unit of progress
    bucket: str
    parsed: Parsed | None
    reason: str = ""


@dataclass(frozen=True)
class Feed:
    """The records of a data set, in their fixed order.

    `key` stands for the content: feeds of one key and one code give the same items. `total` counts `unit`s of
    progress, 0 when nobody knows. `facts` go into the manifest as they are.
    """

    key: str
    items: Iterator[Item]
    total: int
    unit: str
    facts: dict[str, Any] = field(default_factory=dict)
