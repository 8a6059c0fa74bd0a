"""Signals as wishes that the training loop reads: stop with a checkpoint, or make a checkpoint and go on.

SIGTERM, SIGINT and SIGHUP ask to stop, SIGUSR1 for a checkpoint. A handler only takes notes, except inside
`interruptible`, where a stop is raised at once: there nothing is under way that would have to be finished.
If the parent dies, the kernel sends SIGTERM (Linux), so that a trainer never outlives its Snakemake. A process that
was started under nohup stays deaf to SIGHUP, and by itself also outlives its shell.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped, the same command goes on
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


class Stop(BaseException):
    """A stop signal that came inside `interruptible`."""


class Signals:
    """While entered, signals set `stop` (the signal's number) and the wish for a checkpoint."""

    def __init__(self) -> None:
        self.stop: int | None = None
        self._checkpoint = False
        self._interruptible = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python cannot set handlers
            for number in (*_STOPS, signal.SIGUSR1):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._note)
            _die_with_parent()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._earlier:
            _ask_kernel(0)
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def wish(self) -> str:
        """The stop signal as people know it."""
        assert self.stop is not None, "no stop was asked for"
        return "Ctrl-C" if self.stop == signal.SIGINT else signal.Signals(self.stop).name

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        wanted, self._checkpoint = self._checkpoint, False
        return wanted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a stop signal raises Stop at once; so does one that had come before."""
        self._interruptible = True
        try:
            if self.stop is not None:
                raise Stop
            yield
        finally:
            self._interruptible = False

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._checkpoint = True
            return
        self.stop = number
        if self._interruptible:
            self._interruptible = False  # once: the way out is not to be interrupted again
            raise Stop


def _die_with_parent() -> None:
    """Ask for SIGTERM when the parent dies."""
    parent = os.getppid()
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and not _is_snakemake(parent):
        return  # nohup andrea train ...: meant to outlive the shell
    _ask_kernel(signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel knew our wish
        os.kill(os.getpid(), signal.SIGTERM)


def _ask_kernel(number: int) -> None:
    """Which signal the parent's death shall send; 0 is none. Only Linux can do that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _is_snakemake(pid: int) -> bool:
    try:
        return b"snakemake" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
