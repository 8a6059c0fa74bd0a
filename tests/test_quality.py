"""The coherence gate: collapse scores far under the bar, real text far above it, and five rounds in a row stop a run."""

import itertools
import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.quality import PIECE, babbling, coherence, word_list

BAR = 30.0
ROOT = Path(__file__).resolve().parent.parent

PROSE = """When the ferry had gone and the harbour lay quiet again, Marta walked back along the wall with her hands in
her pockets. Nobody had told her how long a week could be. On Monday she had cleaned the windows of the shop, twice; by
Wednesday she knew the names of all the boats; and now it was Friday, the rain had come in from the west, and the only
letter in the box was for the people who had lived there before. She read the address again, slowly, as if the street
might change. "They moved," said the man from the bakery, who had seen her standing there, "to the other side of the
river, I think, or further." He gave her a loaf that was a little burnt and would not take money for it. So she carried
both, the letter and the bread, up the hill and over the bridge, and asked at every door until it was dark."""


@pytest.fixture(scope="module")
def talks() -> list[str]:
    """The first 600 conversations that the package chitchat-dataset ships."""
    data = json.loads((files("chitchat_dataset") / "dataset.json").read_bytes())
    first = itertools.islice(data.values(), 600)
    return ["\n".join(message["text"] for group in talk["messages"] for message in group) for talk in first]


@pytest.fixture(scope="module")
def known(talks: list[str]) -> frozenset[str]:
    """Learned from every second conversation; the others are scored."""
    return word_list(talks[::2])


COLLAPSED = {
    "step 80,000 of the original's first run": ("region " * 200, 22),
    "its step 110,000": ("'" * 400, 1),
    "the same with spaces": ("' " * 400, 1),
    "its step 140,000": ("games, " * 200, 22),
    "its step 165,000": ("Budy " * 300, 2),
    "a loop of two words": ("yes no " * 100, 22),
    "a loop of one sentence": ("> hello\n< I am not sure what you mean by that.\n" * 30, 26),
    "a loop of twenty words": (
        "I like to go to the park with my friends, and we play there until it is late. " * 20,
        27,
    ),
    "sense that ends in a loop": ("I think that we can go there on Friday, if you like " + "region " * 250, 27),
    "line ends alone": ("\n" * 300, 0),
    "nothing": ("", 0),
}


@pytest.mark.parametrize("name", COLLAPSED)
def test_collapsed_text_scores_under_the_bar(name: str, known: frozenset[str]) -> None:
    """The original's first run babbled for 50,000 steps before its own gate would have stopped it."""
    text, most = COLLAPSED[name]
    assert coherence(text, known).total <= most < BAR


@pytest.mark.parametrize("characters", [200, 600, 1600])
def test_people_score_far_above_the_bar(characters: int, talks: list[str], known: frozenset[str]) -> None:
    """A gate that stops a healthy run is worse than none. Samples of any length must pass."""
    unseen = [text[:characters] for text in talks[1::2] if len(text) >= characters]
    scores = sorted(coherence(text, known).total for text in unseen)
    assert len(scores) > 50
    assert scores[0] > BAR + 10  # the lowest repeats itself on purpose
    assert scores[len(scores) // 50] > 2 * BAR
    assert scores[len(scores) // 2] > 90


def test_prose_and_documentation_score_above_the_bar(known: frozenset[str]) -> None:
    """A corpus of books or of code notes is not babble, although its words are not those of the chat."""
    assert coherence(PROSE, known).total > 80
    assert coherence((ROOT / "pyproject.toml").read_text(), known).total > BAR + 10
    assert coherence((ROOT / "LICENSE").read_text(), known).total > 80


def test_the_formulas_by_hand() -> None:
    """The documented example, so that code and document cannot part: 5 units, 4 bigrams of which 3 differ."""
    score = coherence("Go on, go on", frozenset({"go"}))
    assert score.bigrams == pytest.approx(35 * (3 / 4 - 0.4) / 0.5)
    assert score.trigrams == pytest.approx(35)  # go on ,  on , go  , go on
    assert score.words == pytest.approx(20 * 2 / 4)
    assert score.characters == pytest.approx(10 * 5 / 40)  # G o n , g


def test_length_alone_does_not_change_the_score(talks: list[str], known: frozenset[str]) -> None:
    """The share of different bigrams falls with length in any language; without pieces long samples would fail."""
    text = "\n".join(talks[1::2])
    short, long = coherence(text[:2_000], known), coherence(text[:60_000], known)
    assert abs(short.bigrams - long.bigrams) < 3
    assert abs(short.trigrams - long.trigrams) < 3


@given(st.text(max_size=4 * PIECE), st.frozensets(st.text(min_size=1, max_size=8), max_size=20))
def test_any_text_has_a_score_between_0_and_100(text: str, words: frozenset[str]) -> None:
    """Whatever bytes a model writes, the gate must answer."""
    score = coherence(text, words)
    parts = (score.bigrams, score.trigrams, score.words, score.characters)
    assert all(0 <= part <= most for part, most in zip(parts, (35, 35, 20, 10), strict=True))
    assert 0 <= score.total <= 100 + 1e-9


@given(st.lists(st.sampled_from([5.0, 29.9, 30.0, 95.0]), max_size=12), st.integers(0, 6))
def test_the_run_halts_on_an_unbroken_row_only(scores: list[float], halt_after: int) -> None:
    """One bad sample, or four, may be chance; 30 itself is not under 30."""
    row = 0
    for score in scores:
        row = row + 1 if score < BAR else 0
    assert babbling(scores, BAR, halt_after) == (0 < halt_after <= row)


def test_rare_words_are_not_known() -> None:
    """Typing errors of the corpus must not count as words; case must not matter."""
    assert word_list(["Tea, tea and TEA; budy budy"]) == {"tea"}
