"""Lines of a hub data set as items: every line that is no conversation is counted and dropped, with its reason."""

from collections.abc import Callable, Iterable, Iterator

from andrea.megachat import Document
from andrea.sources.feed import Item
from andrea.sources.records import Rejected, parse_line

DAMAGED = "U+FFFD: bytes that are no UTF-8"


def items(lines: Iterable[str], rule: Callable[[Document], str]) -> Iterator[Item]:
    """One item a line, in the bucket that `rule` gives; sizes are bytes of UTF-8."""
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
