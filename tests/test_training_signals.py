"""Signals: noted, raised where nothing is under way, put back afterwards; and nohup is respected."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from andrea.training.signals import Signals, Stop

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS[:3])
def test_a_stop_is_noted_and_no_more(number: int) -> None:
    """An exception in the middle of a step would lose it."""
    with Signals() as signals:
        assert signals.stop is None
        send(number)
        assert signals.stop == number


def test_a_wish_for_a_checkpoint_is_granted_once() -> None:
    """Or every later step would be saved too."""
    with Signals() as signals:
        send(signal.SIGUSR1)
        send(signal.SIGUSR1)
        assert [signals.take_checkpoint(), signals.take_checkpoint()] == [True, False]
        assert signals.stop is None


def test_interruptible_raises_once() -> None:
    """Ctrl-C pressed twice must not interrupt the way out."""
    with Signals() as signals:
        with pytest.raises(Stop), signals.interruptible():  # noqa: PT012
            try:
                send(signal.SIGINT)
            finally:
                send(signal.SIGINT)
        send(signal.SIGTERM)
        with pytest.raises(Stop), signals.interruptible():
            raise AssertionError("a stop that came before is obeyed at the door")


def test_a_checkpoint_is_no_stop_in_interruptible() -> None:
    """SIGUSR1 during the samples waits for their end."""
    with Signals() as signals, signals.interruptible():
        send(signal.SIGUSR1)
    assert signals.take_checkpoint()


def test_handlers_come_back_also_after_an_error() -> None:
    """A program that calls train() keeps its own handlers."""
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(RuntimeError), Signals():
        raise RuntimeError
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    """Python refuses to set handlers there."""
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(Signals().__enter__().take_checkpoint()))
    thread.start()
    thread.join()
    assert seen == [False]


CHILD = """
import os, signal, sys, time
from andrea.training.signals import Signals
with Signals() as signals:
    print("ready", flush=True)
    while signals.stop is None:
        time.sleep(0.01)
print(signal.Signals(signals.stop).name, flush=True)
"""


@pytest.mark.parametrize("nohup", [False, True])
def test_nohup_is_respected(nohup: bool) -> None:
    """A closed terminal stops a run with a checkpoint, unless the user asked it to live on."""
    command = [*(["nohup"] if nohup else []), sys.executable, "-c", CHILD]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGHUP)
        if nohup:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
            child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == ("SIGTERM\n" if nohup else "SIGHUP\n")
