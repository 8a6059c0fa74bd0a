"""One trainer per run folder: an flock, which the kernel lets go with its owner, so that it is never stale."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from andrea.errors import DataError, RunError
from andrea.files import require_file, storing

_PATIENCE = 0.5  # seconds: others may look at the lock for a moment


class RunLock:
    """The lock of a run folder, held until `release`. RunError when another process has it."""

    def __init__(self, folder: Path) -> None:
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(folder)
            try:
                require_file(folder / "pid")  # writing to a pipe waits for a reader
                (folder / "pid").write_text(f"{os.getpid()}\n")
            except (OSError, DataError):
                self.release()
                raise

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_locked(folder: Path) -> int:
    """A locked file handle on folder/lock, which still is that folder's: it may be renamed while we wait."""
    until = time.monotonic() + _PATIENCE
    while True:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(handle, folder / "lock"):
                return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                raise _refusal(folder) from None
            time.sleep(0.02)
        os.close(handle)


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _refusal(folder: Path) -> RunError:
    try:
        pid = (folder / "pid").read_text().strip()
    except OSError:
        pid = "unknown"
    return RunError(
        f"one process at a time may use {folder}",
        got=f"process {pid} holds its lock",
        fix=f"let it end, or stop it with a checkpoint: kill -TERM {pid}",
    )
