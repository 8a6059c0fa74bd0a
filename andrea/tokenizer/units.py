"""Text as units: words with the space before them, numbers, runs of punctuation, white space, chat marks.

The end of a unit is where Harris's successor variety is highest: nearly anything can follow. Inside words the variety
is counted letter by letter (andrea/tokenizer/harris.py).

Unusual: a word is defined by what it is not, so that combining vowel signs (Hindi, Arabic points) stay inside it.
Scripts that write no spaces (Han, kana, Thai, Lao, Khmer, Burmese) give one unit per character.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import count

import numpy as np
from numpy.typing import NDArray

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = (
    "\x00-&(-@\\[-`{-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u00d7\u00f7\u0964\u0965"
    "\u2000-\u2bff\u2e00-\u2e7f\u3000-\u303f\ufe10-\ufe1f\ufe30-\ufe6f\uff00-\uff0f\uff1a-\uff20\U0001f000-\U0001faff"
)
_LETTER = f"[^\\s\\d'\u2019{_MARKS}{_SPACELESS}]"
_UNIT = re.compile(
    "(?:\\A|\n)[<>] "  # a chat mark
    f"| ?{_LETTER}+(?:['\u2019]{_LETTER}+)?"  # a word: " don't"
    f"| ?[{_SPACELESS}]"
    "| ?\\d+"
    f"| ?(?:(?!{_LETTER})[^\\s\\d{_SPACELESS}])+"  # punctuation and symbols
    "|\\s+(?!\\S)|\\s"  # white space, without the last when a word follows
)

BREAK = 0  # the id between documents


def index_units(texts: Iterable[str]) -> tuple[NDArray[np.int32], list[str]]:
    """Cut texts into units. Returns the unit ids in order, BREAK after each text, and the units by id ("" is BREAK)."""
    index: defaultdict[str, int] = defaultdict(count(1).__next__)
    stop = np.full(1, BREAK, np.int32)
    parts = [stop]
    for text in texts:
        units = _UNIT.findall(text)
        parts += (np.fromiter(map(index.__getitem__, units), np.int32, len(units)), stop)
    return np.concatenate(parts), ["", *index]


def count_units(sequence: NDArray[np.int32], units: list[str]) -> NDArray[np.int64]:
    """How often each unit occurs; BREAK counts as 0."""
    counts = np.bincount(sequence, minlength=len(units)).astype(np.int64)
    counts[BREAK] = 0
    return counts


def count_pairs(sequence: NDArray[np.int32], usable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Neighbouring usable units as an (n, 2) array of ids, sorted, and how often each pair occurs."""
    starts = np.flatnonzero(usable[sequence[:-1]] & usable[sequence[1:]])
    keys = sequence[starts].astype(np.int64) * len(usable) + sequence[starts + 1]
    pairs, counts = np.unique(keys, return_counts=True)
    return np.stack(np.divmod(pairs, len(usable)), axis=1), counts.astype(np.int64)
