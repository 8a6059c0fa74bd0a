"""A growing reply: whole characters, and nothing of the user's turn that the model begins."""

import numpy as np
import pytest
from tiny_run import SEGMENTS

from andrea.talk.reply import Reply
from andrea.tokenizer import Tokenizer
from andrea.tokenizer.exported import from_segments

WORDS = Tokenizer(from_segments([*SEGMENTS, b"?\n> So", "é".encode()]), "0" * 64)


def grown(tokens: list[int]) -> tuple[list[str], Reply]:
    reply, pieces = Reply(WORDS), []
    for token in tokens:
        pieces.append(reply.add(token))
        if reply.ended:
            return pieces, reply
    return [*pieces, reply.finish()], reply


@pytest.mark.parametrize(
    ("text", "want", "ended"),
    [
        ("yes\nand no\n> more\n> x", "yes\nand no", "turn"),
        ("a\n>b\n >c\n\n>\n", "a\n>b\n >c\n\n>\n", "length"),
        ("a\n\n> b", "a\n", "turn"),
        ("\n> ", "", "turn"),
        ("> not a new line\n< x", "> not a new line\n< x", "length"),
        ("é日本🙂", "é日本🙂", "length"),
    ],
)
def test_text_is_the_same_however_it_is_cut(text: str, want: str, ended: str) -> None:
    """As bytes, and as the longest tokens: the mark and a character may lie across both."""
    for ids in (list(text.encode()), WORDS.encode(text).tolist()):
        pieces, reply = grown(ids)
        assert ("".join(pieces), reply.text, reply.ended) == (want, want, ended)
        assert all("\ufffd" not in piece for piece in pieces)


def test_a_mark_inside_a_token() -> None:
    """What stands behind it in that token is the user's turn already."""
    token = WORDS.token_bytes.index(b"?\n> So")
    pieces, reply = grown([ord("a"), token, ord("b")])
    assert ("".join(pieces), reply.ended, reply.tokens) == ("a?", "turn", 2)


def test_a_new_document_ends_a_reply() -> None:
    """Half a mark before BOS is text."""
    pieces, reply = grown([ord("a"), ord("\n"), ord(">"), WORDS.bos, ord("b")])
    assert ("".join(pieces), reply.ended) == ("a\n>", "document")


def test_text_comes_as_soon_as_it_is_certain() -> None:
    """A reader must not wait for a whole line."""
    assert grown(list(b"ab\n>c"))[0] == ["a", "b", "", "", "\n>c", ""]
    assert grown([*"é".encode(), 0xE6, 0x97])[0] == ["", "é", "", "", "\ufffd"]


def test_any_bytes() -> None:
    """A model writes any bytes; the pieces together are what decoding all at once gives."""
    rng = np.random.default_rng(0)
    alphabet = np.array([10, 62, 32, 97, 0xC3, 0xA9, 0xE6, 0xF0, 0x9F])
    for _ in range(300):
        ids = rng.choice(alphabet, 12).tolist()
        pieces, reply = grown(ids)
        assert "".join(pieces) == reply.text == bytes(ids).split(b"\n> ")[0].decode(errors="replace")
