"""One progress line with rate and time left: with a bar and rewritten in place on a terminal, else a line now and then.

Plain text and a carriage return: it shows in every terminal, stands in no other program's way, and needs no package.
"""

import shutil
import sys
import time
from typing import TextIO

_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 10.0
_BAR = 24  # characters, where there is room
_MARKS = {True: ("█", "░"), False: ("#", "-")}  # whether the stream can write the first


def short_time(seconds: float) -> str:
    """Seconds as a person says them: `42 s`, `3 min 05 s`, `2 h 10 min`, `3.1 days`."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 86400:.1f} days"


class Progress:
    """Progress of `total` units (0 = unknown) on stderr; `start` units were done before this process."""

    def __init__(self, label: str, total: int, unit: str, *, start: int = 0, stream: TextIO | None = None) -> None:
        self.label, self.total, self.unit, self.first = label, total, unit, start
        self.stream = stream if stream is not None else sys.stderr
        self.terminal = self.stream.isatty()
        self.began = time.monotonic()
        self.last = self.began if not self.terminal else 0.0
        self.width = 0

    def update(self, done: int, extra: str = "") -> None:
        """Say that `done` units are finished; cheap enough to call at every unit."""
        now = time.monotonic()
        if now - self.last >= (_TERMINAL_SECONDS if self.terminal else _PLAIN_SECONDS):
            self.last = now
            text = self.line(done, now - self.began, extra)
            self._write(self._with_bar(text, done) if self.terminal and self.total else text)

    def line(self, done: int, elapsed: float, extra: str = "") -> str:
        rate = (done - self.first) / elapsed if elapsed > 0 else 0.0
        parts = [f"{self.label} {done:,}" + (f"/{self.total:,}" if self.total else "") + f" {self.unit}"]
        if rate > 0 and self.total > done:
            parts.append(f"{short_time((self.total - done) / rate)} left")
        if extra:
            parts.append(extra)
        if rate > 0:
            parts.append(f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2f} {self.unit}/s")
        return "  ".join(parts)

    def _with_bar(self, text: str, done: int) -> str:
        """`text` after a bar, if both fit; alone, and cut where the terminal ends, if not: a wrapped line cannot be rewritten."""
        room = shutil.get_terminal_size().columns - 1
        if len(text) + 8 > room:
            return text[:room]
        full, rest = _MARKS["utf" in (self.stream.encoding or "").lower()]
        width = min(_BAR, room - len(text) - 2)
        filled = width * min(done, self.total) // self.total
        return f"{full * filled}{rest * (width - filled)}  {text}"

    def close(self, note: str = "") -> None:
        """End the line; `note` replaces it when given."""
        if note:
            self._write(note)
        if self.terminal and self.width:
            self.stream.write("\n")
            self.stream.flush()
        self.width = 0

    def _write(self, text: str) -> None:
        if self.terminal:
            self.stream.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()
