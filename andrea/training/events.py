"""events.jsonl in the run folder: what happened to the run and when, one JSON object a line, for the dashboard.

    {"time":1796000000.1,"event":"start","step":0,"steps":5000,"pid":17,"engine":"cpu ...","memory":{"weights":...},
     "tokens":1024,"epochs":{"chitchat":0.0004}}        tokens and epochs: what one step of the source takes
    {"time":1796000042.7,"event":"checkpoint","step":500}                      it is on disk
    {"time":1796000043.0,"event":"signal","step":503,"name":"SIGUSR1"}
    {"time":1796000044.0,"event":"pivot","step":600}                           to the polish section
    {"time":1796000050.2,"event":"stopped"}                or "finished", "halted" and "failed", both with a "reason"

Nothing depends on it. It goes on over restarts and is never cut back: what a crash has undone did happen.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from andrea.errors import StorageError
from andrea.files import require_file, storing

EVENTS = "events.jsonl"


class Events:
    """Appends to the file at `path`; on leaving, the end of the run is noted unless it has been."""

    def __init__(self, path: Path) -> None:
        self.path, self._ended = path, False
        require_file(path)
        with storing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":  # torn by a power cut
                os.write(self._file, b"\n")

    def note(self, event: str, **facts: Any) -> None:
        """Add a line; any thread may. StorageError when the disk refuses."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts}, allow_nan=False)
        with storing(self.path):
            os.write(self._file, f"{line}\n".encode())

    def end(self, event: str, **facts: Any) -> None:
        """How the run ended: the last line."""
        self._ended = True
        self.note(event, **facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                with contextlib.suppress(StorageError):  # a full disk may be what ends the run, and is on its way
                    self.end("failed", reason=str(error) or type(error).__name__)
            elif not self._ended:
                self.end("stopped")
        finally:
            os.close(self._file)
