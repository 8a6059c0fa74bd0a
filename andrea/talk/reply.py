"""A reply as it grows: tokens in, text out as soon as it is certain.

A reply ends where the model begins a user's turn, or a new document (BOS). The mark of a turn may be spread over tokens,
and so may a character; what could still become either is held back until the next token decides.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from andrea.engine import Choice, Inference
from andrea.megachat import USER
from andrea.tokenizer import Tokenizer

END = ("\n" + USER).encode()


@dataclass(frozen=True)
class Settings:
    """How replies are drawn: at most `tokens` tokens each, from the random numbers of `seed`."""

    choice: Choice
    tokens: int
    seed: int


class Reply:
    """`text` is what is certain so far; `ended` is "" until it ends by a "turn", a "document" or its "length"."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self.text, self.ended, self.tokens = "", "", 0

    def add(self, token: int) -> str:
        """Take one token; the text that has become certain by it."""
        self.tokens += 1
        if token == self._tokenizer.bos:
            return self._end("document", self._held)
        data = self._held + self._tokenizer.token_bytes[token]
        if END in data:
            return self._end("turn", data[: data.index(END)])
        keep = next(n for n in range(len(END) - 1, -1, -1) if data.endswith(END[:n]))
        self._held = data[len(data) - keep :]
        return self._give(data[: len(data) - keep])

    def finish(self) -> str:
        """No further token comes: the rest of the text."""
        return self._end("length", self._held)

    def _end(self, how: str, data: bytes) -> str:
        self.ended = how
        return self._give(data, final=True)

    def _give(self, data: bytes, *, final: bool = False) -> str:
        piece = self._decoder.decode(data, final)
        self.text += piece
        return piece


def grow(reply: Reply, engine: Inference, prompt: list[int], settings: Settings, number: int) -> Iterator[str]:
    """Let the engine go on from `prompt` until the reply ends; its text piece by piece. `number` picks the random numbers."""
    for token in engine.stream(prompt, settings.tokens, settings.choice, settings.seed, number):
        yield reply.add(token)
        if reply.ended:
            return
    yield reply.finish()
