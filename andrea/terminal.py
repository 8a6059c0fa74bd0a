"""What may reach a terminal, and standard streams that are not there.

Names, keys and texts from files stand in our messages and tables; a control character among them could move the
cursor, or worse. A stream that was closed before we began is None in Python, and its number would be given to the next
file that is opened: what another library then writes to it would land in a checkpoint.
"""

import io
import os
import re
import sys

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Control characters as U+FFFD; tabs and line ends stay."""
    return _CONTROL.sub("\ufffd", text)


def in_line(text: str) -> str:
    """As `harmless`, for a cell of a table: line ends too."""
    return harmless(text).replace("\n", "\ufffd")


def tell(text: str) -> None:
    """Print text from files: as it is, but for a terminal."""
    print(harmless(text) if sys.stdout.isatty() else text, flush=True)


def open_streams() -> None:
    """Give each closed standard stream the null device; what standard output cannot spell is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
