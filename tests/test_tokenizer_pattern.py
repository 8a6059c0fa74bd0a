"""The trie expression is greedy longest match, in Python's dialect and in that of the `tokenizers` library."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from andrea.tokenizer.ids import TO_BYTE, TO_CHARACTER, spell, unspell
from andrea.tokenizer.pattern import bytes_pattern, json_pattern

LETTERS = st.sampled_from(
    [b"a", b"b", b"\n", b" ", b"\\", b"]", b"^", b"-", b"[", b"&", b"(", b"|", b"~", b"\x00", b"\xff", b"\xc3"]
)
SEGMENTS = st.lists(st.lists(LETTERS, min_size=2, max_size=6).map(b"".join), max_size=25, unique=True)
DATA = st.lists(LETTERS, max_size=60).map(b"".join)


def longest_match(segments: list[bytes], data: bytes) -> list[bytes]:
    """The definition: at each place the longest segment, else one byte."""
    known, pieces, start = set(segments), [], 0
    while start < len(data):
        ends = [end for end in range(start + 2, len(data) + 1) if data[start:end] in known]
        pieces.append(data[start : max(ends, default=start + 1)])
        start += len(pieces[-1])
    return pieces


@given(SEGMENTS, DATA)
@settings(max_examples=300)
def test_both_dialects_find_the_longest_segment(segments: list[bytes], data: bytes) -> None:
    """A wrong escape, or an end mark tried too early, gives other ids than the definition."""
    pieces = longest_match(segments, data)
    assert bytes_pattern(segments).findall(data) == pieces
    split = pre_tokenizers.Split(Regex(json_pattern(segments)), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str(spell(data))] == [spell(piece) for piece in pieces]


def test_nested_segments_of_full_length() -> None:
    """A chain of 63 ends is the deepest trie a tokenizer can have; 100,000 letters must not take quadratic time."""
    segments = [b"a" * n for n in range(2, 65)]
    assert bytes_pattern(segments).findall(b"a" * 100_000) == [b"a" * 64] * 1562 + [b"a" * 32]
    Regex(json_pattern(segments))


def test_byte_alphabet_is_that_of_gpt2() -> None:
    """Other tools read the tokens in this alphabet."""
    assert len(set(TO_CHARACTER.values())) == 256 == len(TO_BYTE)
    assert set(TO_CHARACTER.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert spell(" é\n".encode()) == "ĠÃ©Ċ"
    assert unspell("ĠÃ©Ċ") == " é\n".encode()
