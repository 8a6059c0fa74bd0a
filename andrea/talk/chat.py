"""`andrea chat`: a conversation in the terminal, or over a pipe, where each line in is a turn and only replies go out."""

import contextlib
import sys
from collections.abc import Callable

from andrea.engine import Inference
from andrea.errors import DataError
from andrea.talk.history import History
from andrea.talk.model import Model
from andrea.talk.reply import Reply, Settings, grow, harmless

HELP = "Ctrl-C stops a reply, and leaves at the prompt; /new forgets what was said, /quit leaves"
Ask = Callable[[], str | None]


def chat(model: Model, engine: Inference, settings: Settings, ask: Ask, *, marks: bool) -> int:
    """Answer what `ask` gives until it gives None or /quit. `marks`: a person reads along."""
    history, replies = History(model.tokenizer, model.shape.context), 0
    while (text := ask()) not in (None, "/quit"):
        if text == "/new":
            history.forget()
        elif text:
            try:
                prompt = history.ask(text, settings.tokens)
            except DataError as mistake:
                _note(f"error: {mistake}")
                continue
            _answer(history, engine, prompt, settings, replies, model, marks=marks)
            replies += 1
    return 0


def _answer(
    history: History,
    engine: Inference,
    prompt: list[int],
    settings: Settings,
    number: int,
    model: Model,
    *,
    marks: bool,
) -> None:
    """Show one reply while it grows, and remember as much of it as there is when it is stopped."""
    if history.cut and marks:
        _note("(the oldest turns no longer fit and are forgotten)")
    reply = Reply(model.tokenizer)
    _show("< " if marks else "")
    try:
        for piece in grow(reply, engine, prompt, settings, number):
            _show(harmless(piece))
    except KeyboardInterrupt:
        _show(" ..." if marks else "")
    _show("\n")
    history.answer(reply.text)


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
