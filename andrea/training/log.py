"""What a run says: lines for people on stderr and in train.log, and a progress line on top of them."""

import sys
import time
from pathlib import Path
from typing import BinaryIO

from andrea.files import require_file, storing
from andrea.progress import Progress
from andrea.terminal import harmless

_LOG_SECONDS = 10.0
_SMOOTH = 0.98  # of the loss that is shown; nothing depends on it


class Log:
    """Lines go to stderr at once, and to the log file from `open` on, earlier ones included."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._earlier: list[str] = []
        self._progress: Progress | None = None
        self._progress_written = time.monotonic()
        self._loss: float | None = None

    def open(self, path: Path) -> None:
        require_file(path)
        with storing(path):
            self._file = path.open("ab", buffering=0)
        for line in self._earlier:
            self._write(line)
        self._earlier = []

    def say(self, text: str) -> None:
        """One or more lines that stay."""
        if self._progress is not None:
            self._progress.close()
        text = harmless(text)  # it may quote a file
        print(text, file=sys.stderr, flush=True)
        self._write(text)

    def begin_progress(self, name: str, steps: int, start: int) -> None:
        self._progress = Progress(name, steps, "steps", start=start)

    def progress(self, step: int, losses: list[float], tokens_per_second: float) -> None:
        """Rewrite the progress line after a few more steps."""
        assert self._progress is not None, "begin_progress() comes first"
        for loss in losses:
            self._loss = loss if self._loss is None else _SMOOTH * self._loss + (1 - _SMOOTH) * loss
        extra = f"loss {self._loss or 0.0:.3f}  {tokens_per_second:,.0f} tokens/s"
        self._progress.update(step, extra)
        now = time.monotonic()
        if now - self._progress_written >= _LOG_SECONDS:
            self._progress_written = now
            self._write(self._progress.line(step, now - self._progress.began, extra))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, text: str) -> None:
        if self._file is None:
            self._earlier.append(text)
            return
        with storing(self._file.name):
            self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n".encode())
