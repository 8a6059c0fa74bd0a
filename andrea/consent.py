"""Before a long training: what it will take, and a question, if there is someone at the terminal to answer it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from andrea.errors import RunError
from andrea.estimate import expected, outlook
from andrea.experiment import Experiment
from andrea.progress import short_time
from andrea.training.runfolder import stands_at

LONG = 3600.0  # seconds: what is shorter needs no question


def outlooks(experiments: Sequence[Experiment], root: Path) -> list[str]:
    """What is still to be trained of each experiment, and what that takes: one line each."""
    return [outlook(experiment, stands_at(experiment, root)) for experiment in experiments]


def ask(experiments: Sequence[Experiment], root: Path) -> None:
    """RunError when a person at the terminal does not want to wait so long. Nobody else is asked."""
    seconds = sum(max(expected(e, stands_at(e, root)).values()) for e in experiments)
    if seconds <= LONG or not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        return
    try:
        answer = input(f"training may take {short_time(seconds)} (estimate, see above); go on? [Y/n] ").strip()
    except (EOFError, KeyboardInterrupt):
        answer = "Ctrl-C or Ctrl-D"
    except UnicodeDecodeError:
        answer = "no text"
    if answer.lower() not in ("", "y", "yes"):
        raise RunError(
            f"about {short_time(seconds)} of training must be what you want",
            got=answer,
            fix="nothing was begun; lower train.steps, or take a faster machine (andrea show says what it costs)",
        )
