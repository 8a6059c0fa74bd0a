"""The coherence gate: a score from 0 to 100 for text that a model wrote, and the rule that stops a babbling run.

It sees collapse (loops, runs of one character, made-up words), not sense: a model that shuffles real words scores
well. Diversity is measured in pieces of PIECE units, so that long texts, whose words repeat by nature, are not
marked down. The formulas stand in docs/FIREHOSE-BANDIT.md.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PIECE = 100  # units
UNIT = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_")  # a word with its inner apostrophes, or one other mark
BIGRAMS, TRIGRAMS, WORDS, CHARACTERS = 35.0, 35.0, 20.0, 10.0  # the four greatest parts
LOOP, PROSE = 0.4, 0.9  # shares of different n-grams that earn nothing and everything
ALPHABET = 40  # different characters that earn everything
MIN_COUNT = 3  # a word of the training text is known from its third occurrence on


@dataclass(frozen=True)
class Coherence:
    """The parts of a score; `total` is their sum, 0 to 100."""

    bigrams: float
    trigrams: float
    words: float
    characters: float

    @property
    def total(self) -> float:
        return self.bigrams + self.trigrams + self.words + self.characters


def coherence(text: str, known: frozenset[str]) -> Coherence:
    """Score `text`; `known` holds words in lower case. Text without a single unit scores 0."""
    units = [unit.lower() for unit in UNIT.findall(text)]
    words = [unit for unit in units if unit[0].isalpha()]
    return Coherence(
        BIGRAMS * _diversity(units, 2),
        TRIGRAMS * _diversity(units, 3),
        WORDS * sum(word in known for word in words) / max(1, len(words)),
        CHARACTERS * min(1.0, len(set(text) - {" ", "\n"}) / ALPHABET),
    )


def _diversity(units: Sequence[str], n: int) -> float:
    """Share of different n-grams, averaged over pieces of at most PIECE units, on the scale from LOOP to PROSE."""
    different = total = 0
    for start in range(0, len(units), PIECE):
        piece = units[start : start + PIECE]
        grams = [tuple(piece[i : i + n]) for i in range(len(piece) - n + 1)]
        different += len(set(grams))
        total += len(grams)
    return min(1.0, max(0.0, (different / max(1, total) - LOOP) / (PROSE - LOOP)))


def word_list(texts: Iterable[str]) -> frozenset[str]:
    """Words that occur at least MIN_COUNT times in `texts`, in lower case."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(unit for unit in UNIT.findall(text.lower()) if unit[0].isalpha())
    return frozenset(word for word, count in counts.items() if count >= MIN_COUNT)


def babbling(scores: Sequence[float], halt_below: float, halt_after: int) -> bool:
    """Whether the last `halt_after` scores are all under `halt_below`; never with a `halt_after` of 0."""
    last = scores[len(scores) - halt_after :] if halt_after else ()
    return 0 < halt_after <= len(scores) and all(score < halt_below for score in last)
