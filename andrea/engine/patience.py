"""Signals wait while Numba compiles or loads a loop, a second or two.

Their handlers raise, and an exception that is raised within a callback of LLVM is lost: the compiler then failed later,
with a traceback about something else.
"""

import signal
import threading
from types import FrameType
from typing import Any

from numba.core.event import Event, Listener

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Patience(Listener):  # type: ignore[misc]  # numba has no types
    """Told of Numba's compiler lock, which is taken again within itself. Handlers run in the main thread only."""

    def __init__(self) -> None:
        self._depth, self._came = 0, 0
        self._earlier: dict[int, Any] = {}

    def on_start(self, event: Event) -> None:  # noqa: ARG002
        if threading.current_thread() is threading.main_thread():
            self._depth += 1
            if self._depth == 1:
                self._earlier = {n: signal.signal(n, self._note) for n in _STOPS if callable(signal.getsignal(n))}

    def on_end(self, event: Event) -> None:  # noqa: ARG002
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if self._depth == 0:
                for number, handler in self._earlier.items():
                    signal.signal(number, handler)
                came, self._came = self._came, 0
                if came:
                    signal.raise_signal(came)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came = number
