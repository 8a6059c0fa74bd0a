"""Units: nothing of a text is lost between them, and words are what a reader takes for words."""

import numpy as np
import pytest
from hypothesis import given
from tokenizer_texts import ANY_TEXT

from andrea.tokenizer.units import BREAK, count_pairs, count_units, index_units


def cut(text: str) -> list[str]:
    sequence, units = index_units([text])
    return [units[n] for n in sequence.tolist() if n != BREAK]


@given(ANY_TEXT)
def test_units_join_to_the_text(text: str) -> None:
    """A character that no alternative matches would vanish from the counts without a word."""
    assert "".join(cut(text)) == text


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("> Hi there\n< I don't know", ["> ", "Hi", " there", "\n< ", "I", " don't", " know"]),
        ("so...  what? 42 times", ["so", "...", " ", " what", "?", " 42", " times"]),
        ("end \n\n< x", ["end", " \n", "\n< ", "x"]),
        ("मैं हिन्दी", ["मैं", " हिन्दी"]),
        ("e\u0301te\u0301 été", ["e\u0301te\u0301", " été"]),
        ("今日は", ["今", "日", "は"]),
        ("a<b 'quoted' 😂😂", ["a", "<", "b", " '", "quoted", "'", " 😂😂"]),
    ],
)
def test_words_keep_their_space_signs_and_apostrophes(text: str, units: list[str]) -> None:
    """`[^\\W\\d_]` for a letter would cut Hindi at every vowel sign."""
    assert cut(text) == units


def test_pairs_never_cross_documents() -> None:
    """The last word of one document and the first of the next are no phrase."""
    sequence, units = index_units(["a b", "a b", "b a"])
    names = {name: n for n, name in enumerate(units)}
    counts = count_units(sequence, units)
    assert counts[BREAK] == 0
    assert counts[names["a"]] == 2
    assert counts[names[" b"]] == 2
    pairs, often = count_pairs(sequence, counts > 0)
    assert {(units[x], units[y]): n for (x, y), n in zip(pairs.tolist(), often.tolist(), strict=True)} == {
        ("a", " b"): 2,
        ("b", " a"): 1,
    }
    assert len(count_pairs(np.zeros(1, np.int32), np.zeros(1, bool))[0]) == 0
