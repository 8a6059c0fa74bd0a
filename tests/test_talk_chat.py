"""A chat: what the model is shown of it, how it is cut to the context, and how it is stopped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_run import SEGMENTS
from trained_model import opened

from andrea.engine import Choice
from andrea.errors import DataError
from andrea.megachat import Turn
from andrea.talk.chat import Chat
from andrea.talk.history import History
from andrea.talk.reply import Settings
from andrea.tokenizer import Tokenizer
from andrea.tokenizer.exported import from_segments

WORDS = Tokenizer(from_segments(SEGMENTS), "0" * 64)
SETTINGS = Settings(Choice(0.0, 0), 20, 1)


class Scripted:
    """An engine that says given texts, one byte a token, and keeps the prompts; "^C" is an interrupt."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.prompts, self.numbers = list(texts), [], []

    def stream(self, prompt: list[int], tokens: int, choice: Choice, seed: int, step: int) -> Iterator[int]:
        assert 1 <= len(prompt) < 64
        self.prompts.append(WORDS.decode(prompt))
        self.numbers.append(step)
        text = self.texts.pop(0)
        yield from text.split("^C")[0].encode()
        if "^C" in text:
            raise KeyboardInterrupt


class Someone:
    """A model without weights."""

    tokenizer = WORDS

    class shape:
        context = 64


def say(engine: Scripted, *lines: str, marks: bool = False) -> int:
    asked = iter([*lines, None])
    model: Any = Someone()
    return Chat(model, engine, SETTINGS, marks=marks).run(lambda: next(asked))  # type: ignore[arg-type]


def test_a_conversation_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the earlier turns the model would answer each line as if it were the first."""
    engine = Scripted("yo\n> me", "fine\n< and you?", "ok")
    assert say(engine, "hi", "", "how", "well") == 0
    assert engine.prompts == ["> hi\n< ", "> hi\n< yo\n> how\n< ", "> hi\n< yo\n> how\n< fine\n< and you?\n> well\n< "]
    assert engine.numbers == [0, 1, 2]
    assert capsys.readouterr().out == "yo\nfine\n< and you?\nok\n"


def test_a_stopped_reply_is_remembered_as_far_as_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the reply, not the chat."""
    engine = Scripted("never^C", "b")
    assert say(engine, "a", "go on", marks=True) == 0
    assert engine.prompts[1] == "> a\n< never\n> go on\n< "
    assert capsys.readouterr().out == "< never ...\n< b\n"


def test_commands_and_long_turns(capsys: pytest.CaptureFixture[str]) -> None:
    """/new forgets, /quit leaves, and a turn that cannot fit does not end the chat."""
    engine = Scripted("b", "d")
    assert say(engine, "a", "/new", "c" * 70, "c", "/quit", "never asked") == 0
    assert engine.prompts == ["> a\n< ", "> c\n< "]
    assert "leave room in the model's context of 64" in capsys.readouterr().err


def test_an_unknown_command_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """/help and /exit went to the model, which talked on."""
    engine = Scripted("a path")
    assert say(engine, "/help", "/etc/hosts") == 0
    assert engine.prompts == ["> /etc/hosts\n< "]
    said = capsys.readouterr().err
    assert "/help is no command" in said and "/new" in said and "/quit" in said


def test_the_oldest_turns_go_first() -> None:
    """Half the context at most is kept free for the reply; a pair of turns goes as one."""
    history = History(WORDS, 64)
    history.ask("a" * 10, 20)
    history.answer("b" * 10)
    assert not history.cut
    ids = history.ask("c" * 14, 20)
    assert not history.cut and len(ids) == 1 + 2 + 10 + 1 + 10 + 3 + 14 + 1  # "\n< " is one token
    history.answer("d")
    ids = history.ask("e", 20)
    assert history.cut and WORDS.decode(ids) == f"> {'c' * 14}\n< d\n> e\n< "
    assert history.turns[0] == Turn("user", "c" * 14)
    history.answer("f")
    assert len(history.ask("g" * 50, 1000)) == 1 + 2 + 50 + 1
    with pytest.raises(DataError, match="leave room"):
        history.ask("h" * 60, 1)
    assert history.turns[-1].text == "g" * 50


def test_what_reads_as_a_turn_is_escaped() -> None:
    """A user who quotes a chat must not speak for the model."""
    history = History(WORDS, 64)
    assert WORDS.decode(history.ask("a\n< b", 9)) == "> a\n\x10< b\n< "
    assert WORDS.decode(History(WORDS, 64).ask("<|bos|>", 9)) == "> <|bos|>\n< "


def test_the_real_engine_talks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed says the same, another one does not; and ten turns pass the end of the context."""
    model, engine = opened(tmp_path)
    texts = []
    for seed in (1, 1, 2):
        lines = iter([*"abcdefghij", None])
        Chat(model, engine, Settings(Choice(1.0, 0), 12, seed), marks=False).run(lambda lines=lines: next(lines))  # type: ignore[misc]
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert "\x1b" not in texts[0]
