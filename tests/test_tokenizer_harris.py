"""Successor variety finds morphemes, and training gives exactly the segments it was asked for, or says why not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_texts import conversations

from andrea.errors import DataError
from andrea.tokenizer import harris
from andrea.tokenizer.pattern import bytes_pattern

READ = "able ape beatable fixable read readable reading reads red rope ripe".split()


def test_variety_is_harris_count() -> None:
    """The textbook table for "readable" among these words (Hafer and Weiss 1974), an end being one more letter."""
    followers = harris.variety(READ)
    assert [followers["readable"[:n]] for n in range(1, 9)] == [3, 2, 1, 4, 1, 1, 1, 1]
    backwards = harris.variety([word[::-1] for word in READ])
    assert [backwards["elba"[:n]] for n in range(1, 5)] == [2, 1, 1, 4]


def test_words_are_cut_where_variety_jumps() -> None:
    """read|able: forwards behind "read", backwards in front of "able"."""
    followers, backwards = harris.variety(READ), harris.variety([word[::-1] for word in READ])
    assert harris.cuts("readable", followers, backwards) == [0, 4, 8]
    assert harris.cuts("reading", followers, backwards) == [0, 4, 7]
    assert harris.cuts("a", followers, backwards) == [0, 1]


def test_candidates_are_morphemes_words_and_pairs() -> None:
    """A piece that no boundary ends would fill the alphabet with noise."""
    found = harris.candidates(conversations(400), 16, 8)
    assert {b"ing", b"able", b" believ", b" un", b" over", b" the", b" don't", b" of the"} <= found.keys()
    assert b"elie" not in found
    assert b"vab" not in found
    assert all(2 <= len(segment) <= 16 and count >= 8 for segment, count in found.items())


@pytest.mark.parametrize("wanted", [1, 3, 100, 300])
def test_exactly_as_many_segments_as_asked(wanted: int) -> None:
    """The vocabulary is segments + 257 for the model's shape; one more or less breaks it."""
    segments = harris.train(conversations(400), segments=wanted, max_segment_bytes=12, min_count=4)
    assert len(set(segments)) == len(segments) == wanted
    assert all(2 <= len(segment) <= 12 for segment in segments)
    assert segments[: min(4, wanted)] == list(harris.MARKS[:wanted])


def test_too_little_text_says_how_many_there_are() -> None:
    """The number in the message is the one that then works."""
    texts = conversations(20)
    with pytest.raises(DataError) as told:
        harris.train(texts, segments=50_000, max_segment_bytes=12, min_count=4)
    found = int(told.value.got.split()[0].replace(",", ""))
    assert "sample_bytes" in told.value.fix
    assert f"{found:,}" in told.value.fix
    assert len(harris.train(texts, segments=found, max_segment_bytes=12, min_count=4)) == found
    with pytest.raises(DataError, match="must hold 10 segments"):
        harris.train([], segments=10, max_segment_bytes=12, min_count=1)


def test_short_limit_leaves_out_marks_that_do_not_fit() -> None:
    """A mark of three bytes under a limit of two would break the file's own rule."""
    segments = harris.train(conversations(100), segments=20, max_segment_bytes=2, min_count=2)
    assert segments[:2] == [b"< ", b"> "]
    assert {len(segment) for segment in segments} == {2}


def test_ranking_by_use_beats_ranking_by_count() -> None:
    """Overlapping candidates (" over", "over", " ov") must not all be kept."""
    texts, fresh = conversations(400), "\n".join(conversations(100, seed=2)).encode()
    counts = harris.candidates(texts, 16, 4)
    by_count = sorted(counts, key=lambda segment: (-counts[segment] * (len(segment) - 1), segment))[:120]
    by_use = harris.train(texts, segments=120, max_segment_bytes=16, min_count=4)
    tokens = [len(bytes_pattern(segments).findall(fresh)) for segments in (by_use, by_count)]
    assert tokens[0] < 0.95 * tokens[1]


@pytest.mark.parametrize(
    "text",
    [
        "今日は天気がいいですね。明日も晴れるでしょう。",
        "आज मौसम बहुत अच्छा है और कल भी अच्छा रहेगा।",
        "오늘은 날씨가 좋습니다. 내일도 맑겠습니다.",
    ],
)
def test_other_scripts_are_cut_between_characters(text: str) -> None:
    """Half a character as a segment serves no other word."""
    segments = harris.train([f"> {text}\n< {text}"] * 10, segments=20, max_segment_bytes=24, min_count=4)
    assert len(segments) == 20
    assert all(segment.decode() for segment in segments)
    assert any(not segment.isascii() for segment in segments)


SEGMENTS = harris.train(
    [*conversations(300), *(f"x.\n<b\n>> y\n< I see\n\n> <a>{n % 9}" for n in range(300))],
    segments=200,
    max_segment_bytes=12,
    min_count=4,
)
TURN = st.lists(
    st.sampled_from(["\n", " ", ".", "?", "<", ">", "I", " the", "a", "\n\n", ">>", "see", "<a>"]), max_size=12
)


@given(st.sampled_from(["", "> ", "< "]), TURN, st.sampled_from(["\n< ", "\n> "]), TURN)
def test_a_prompt_is_cut_as_in_training(opening: str, before: list[str], mark: str, after: list[str]) -> None:
    """If "\\n< I" were one token, a prompt that ends in "\\n< " would ask for what no training text had."""
    find = bytes_pattern(SEGMENTS).findall
    prompt, reply = (opening + "".join(before) + mark).encode(), "".join(after).encode()
    assert find(prompt + reply) == find(prompt) + find(reply)
    assert all(not harris.crosses_mark(segment) for segment in SEGMENTS)
