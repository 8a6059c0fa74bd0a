"""`andrea chat`: a conversation in the terminal, or over a pipe, where each line in is a turn and only replies go out."""

import contextlib
import re
import sys
from collections.abc import Callable

from andrea.engine import Inference
from andrea.errors import DataError
from andrea.talk.history import History
from andrea.talk.model import Model
from andrea.talk.reply import Reply, Settings, grow
from andrea.terminal import harmless

HELP = "Ctrl-C stops a reply, and leaves at the prompt; /new forgets what was said, /quit leaves"
_COMMAND = re.compile(r"/[a-z]+")  # not /etc/hosts
Ask = Callable[[], str | None]


class Chat:
    """One conversation. `marks`: a person reads along."""

    def __init__(self, model: Model, engine: Inference, settings: Settings, *, marks: bool) -> None:
        self._model, self._engine, self._settings, self._marks = model, engine, settings, marks
        self._history, self._replies, self._told = History(model.tokenizer, model.shape.context), 0, False

    def run(self, ask: Ask) -> int:
        """Answer what `ask` gives until it gives None or /quit."""
        while (text := ask()) not in (None, "/quit"):
            if text == "/new":
                self._history.forget()
            elif _COMMAND.fullmatch(text):
                _note(f"{text} is no command; {HELP}")
            elif text:
                self._turn(text)
        return 0

    def _turn(self, text: str) -> None:
        try:
            prompt = self._history.ask(text, self._settings.tokens)
        except DataError as mistake:
            _note(f"error: {mistake}")
            return
        if self._history.cut and self._marks and not self._told:
            _note("(from here on the oldest turns no longer fit and are forgotten)")
            self._told = True
        self._answer(prompt)

    def _answer(self, prompt: list[int]) -> None:
        """Show one reply while it grows, and remember as much of it as there is when it is stopped."""
        reply = Reply(self._model.tokenizer)
        _show("< " if self._marks else "")
        try:
            for piece in grow(reply, self._engine, prompt, self._settings, self._replies):
                _show(harmless(piece))
        except KeyboardInterrupt:
            _show(" ..." if self._marks else "")
        _show("\n")
        self._history.answer(reply.text)
        self._replies += 1


def terminal() -> str | None:
    """A line that a person types; None at Ctrl-C or the end of input (Ctrl-D)."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() a line editor, where there is one)
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def pipe() -> str | None:
    """The next line of standard input; None at its end."""
    line = sys.stdin.readline()
    return line.strip() if line else None


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
