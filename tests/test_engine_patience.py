"""Ctrl-C while the loops are compiled."""

import signal

import pytest
from numba.core.compiler_lock import global_compiler_lock

import andrea.engine.loops  # noqa: F401


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_compiler(number: int) -> None:
    """It was lost within LLVM, and Numba ended with a RuntimeError: in a first run that was every second Ctrl-C."""

    def stop(_number: int, _frame: object) -> None:
        raise InterruptedError

    earlier = signal.signal(number, stop)
    reached = []
    try:
        with pytest.raises(InterruptedError), global_compiler_lock:  # noqa: PT012
            with global_compiler_lock:
                signal.raise_signal(number)
                reached.append(1)
            reached.append(2)
        assert reached == [1, 2] and signal.getsignal(number) is stop
        with global_compiler_lock:
            pass  # once only
    finally:
        signal.signal(number, earlier)
