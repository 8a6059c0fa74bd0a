"""Books: bounded documents of whole paragraphs, nothing lost between them, no wrapper of the library."""

import re

from hypothesis import given
from hypothesis import strategies as st

from andrea.sources import books
from andrea.sources.books import PIECE, pieces


def texts(book: object) -> list[str]:
    return [item.parsed.document.text for item in books.items([{"text": book}]) if item.parsed]


def test_pieces_end_at_paragraphs() -> None:
    """Guards the cut: as many whole paragraphs as fit, in order, with their own line breaks."""
    paragraphs = [f"Paragraph {i},\nsecond line: {'x' * 900}." for i in range(10)]
    found = list(pieces("\n\n \n".join(paragraphs)))
    assert [piece.count("Paragraph") for piece in found] == [4, 4, 2]
    assert "\n\n".join(found) == "\n\n".join(paragraphs)


def test_a_long_paragraph_is_cut_after_a_sentence_else_at_a_blank_else_anywhere() -> None:
    sentences = " ".join(f"This is sentence number {i}." for i in range(400))
    assert all(piece.endswith(".") for piece in pieces(sentences))
    words = "word " * 2000
    assert all(piece.endswith("word") and len(piece) <= PIECE for piece in pieces(words))
    assert list(map(len, pieces("x" * (2 * PIECE + 5)))) == [PIECE, PIECE, 5]


@given(st.text(alphabet="ab.!\n\t \u201d", max_size=400), st.integers(1, 30))
def test_nothing_is_lost_and_nothing_is_long(text: str, repeats: int) -> None:
    """Guards against text that falls between two pieces, and against blank pieces, which are no documents."""
    text = (text + "c") * repeats * 3
    found = list(pieces(text))
    assert all(piece.strip() and len(piece) <= PIECE for piece in found)
    assert re.sub(r"\s", "", "".join(found)) == re.sub(r"\s", "", text)


def test_the_wrapper_is_left_out() -> None:
    """Guards against 1,200 copies of one licence text; without the marks the whole text is the book."""
    book = "Header\r\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r\n\r\nA.\r\n\r\n\r\nB.\r\n"
    assert texts(book + "***END OF THE PROJECT GUTENBERG EBOOK X***\r\nLicence") == ["A.\n\nB."]
    assert texts(book + "End of the Project Gutenberg EBook of X\r\n*** END OF X") == ["A.\n\nB."]
    assert texts("A.\n\n*** END OF nothing\nB.") == ["A."]
    assert texts("A *** START OF x\nB") == ["A *** START OF x\nB"], "a mark begins its line"


def test_books_that_are_none_are_counted() -> None:
    """Guards the counts: every book is of size 1, whatever becomes of it."""
    values = [None, "", " \n\n ", "*** START OF X\n*** END OF X", "x" * 10_000]
    found = list(books.items({"text": value} for value in values))
    assert [item.reason for item in found if not item.parsed] == ['"text" is not a string', *["empty text"] * 3]
    assert sum(item.size for item in found) == len(values)
