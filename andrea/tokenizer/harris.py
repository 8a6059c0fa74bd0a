"""Harris segments: a fixed alphabet of morphemes, words and short phrases, found by successor variety.

Source: Zellig S. Harris, "From Phoneme to Morpheme", Language 31 (1955), 190-222. His count, on letters: of all known
words that begin with "believ", how many different letters come next? Inside a morpheme the number falls, and right
behind a morpheme it jumps, since nearly anything may follow there. Read backwards, predecessor variety finds the
starts of endings.

The algorithm, for N segments:

1. Cut the sample into units: words with their leading space, numbers, punctuation, chat marks (units.py).
2. Over the distinct words that occur at least `min_count` times, count successor variety V(p) of every prefix p (an end
   of word counts as one more letter), and predecessor variety of every suffix.
3. Cut a word behind each prefix where V is higher than one letter before, and in front of each suffix likewise.
   The ends of a unit are always cuts.
4. Candidates are what stands between any two cuts of a word, and two neighbouring units: one level up, both their
   ends are cuts. Weight: how often it occurs there. Kept: 2 bytes to `max_segment_bytes`, at least `min_count` times.
5. Keep the 8 N with the largest count * (bytes - 1), the tokens that a segment could save.
6. Rank by what a segment does save: encode part of the sample by greedy longest match with all that are left; its
   strength is its uses times the tokens it would cost without it, less one. Drop the weakest and repeat, down to N.

The chat marks always stay, and no segment reaches across one's end (see `crosses_mark`), so that a prompt which ends
in a mark is cut as it was in training.

Unusual: steps 5 and 6 are ours; Harris gave no strength. Candidates are ranked in use because the most frequent ones
overlap (" the", "the", " th"): on held-out chat the loop makes 2,048 segments carry about a tenth more text each.
Deterministic: only integers are compared, and ties go by bytes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from andrea.errors import DataError
from andrea.tokenizer.pattern import bytes_pattern
from andrea.tokenizer.units import count_pairs, count_units, index_units

MARKS = (b"\n< ", b"\n> ", b"< ", b"> ")

_POOL = 8  # candidates per wanted segment
_ROUNDS = (4.0, 2.0, 1.4, 1.15, 1.0)  # how many are left after each round, per wanted segment
_ROUND_BYTES = 1_000_000  # text a round encodes, at least
_ROUND_BYTES_EACH = 2_000  # and per wanted segment
_LONGEST_WORD = 64  # characters; longer runs are no words

_CROSSING = re.compile(rb"\n[<>]|\A[<>].|\n[<>]\Z", re.DOTALL)


def train(texts: Sequence[str], *, segments: int, max_segment_bytes: int, min_count: int) -> list[bytes]:
    """Exactly `segments` distinct segments, strongest first. Raises DataError when `texts` do not hold so many."""
    found = learn(texts, segments=segments, max_segment_bytes=max_segment_bytes, min_count=min_count)
    if len(found) < segments:
        n_bytes = sum(len(text.encode()) for text in texts)
        raise DataError(
            f"the training sample must hold {segments:,} segments that occur at least {min_count} times",
            got=f"{len(found):,} segments in {n_bytes:,} bytes",
            fix=f"set tokenizer.segments to {len(found):,} or less, lower tokenizer.min_count, "
            "or give it more text (tokenizer.sample_bytes, or more sources)",
        )
    return found


def learn(texts: Sequence[str], *, segments: int, max_segment_bytes: int, min_count: int) -> list[bytes]:
    """As `train`, but with as many segments as `texts` hold, at most `segments`."""
    counts = candidates(texts, max_segment_bytes, min_count)
    fixed = [mark for mark in MARKS if len(mark) <= max_segment_bytes][:segments]
    for mark in fixed:
        counts.pop(mark, None)
    best = sorted(counts, key=lambda segment: (-counts[segment] * (len(segment) - 1), segment))
    return _strongest(fixed + best[: _POOL * segments], fixed, segments, _part(texts, segments))


def crosses_mark(segment: bytes) -> bool:
    """True when a turn could be cut elsewhere than right behind its mark if this were a segment.

    A mark ("< " or "> " where a line starts) is cut as "\\n< ", or as "< " when its line end went to the segment
    before. Nothing else may hold a line end with "<" or ">" behind it, or begin with one of these.
    """
    return segment not in MARKS and _CROSSING.search(segment) is not None


# ---------------------------------------------------------------------------------------------------------------------


def candidates(texts: Iterable[str], max_bytes: int, min_count: int) -> dict[bytes, int]:
    """Everything that stands between two cuts (steps 1 to 4) -> how often."""
    sequence, units = index_units(texts)
    counts = count_units(sequence, units)
    frequent = np.flatnonzero((counts >= min_count) & [len(unit) <= _LONGEST_WORD for unit in units])
    words = {units[n]: int(counts[n]) for n in frequent.tolist()}
    found = _between_cuts(words, max_bytes)
    usable = np.zeros(len(units), bool)
    usable[frequent] = True
    usable[[n for n in frequent.tolist() if units[n].encode() in MARKS]] = False
    pairs, pair_counts = count_pairs(sequence, usable)
    often = pair_counts >= min_count
    for (left, right), count in zip(pairs[often].tolist(), pair_counts[often].tolist(), strict=True):
        phrase = units[left] + units[right]
        if not phrase.endswith(" "):  # the space belongs to the word that follows
            found[phrase] += count
    encoded = {text.encode(): count for text, count in found.items() if count >= min_count}
    return {s: count for s, count in encoded.items() if 2 <= len(s) <= max_bytes and not crosses_mark(s)}


def variety(words: Iterable[str]) -> Counter[str]:
    """Harris's count: for each prefix of the distinct `words`, how many different letters follow; an end is one more."""
    known = set(words)
    prefixes = {word[:n] for word in known for n in range(1, len(word) + 1)}
    followers = Counter([prefix[:-1] for prefix in prefixes])
    followers.update(known)
    return followers


def cuts(word: str, successors: Mapping[str, int], predecessors: Mapping[str, int]) -> list[int]:
    """Places in `word` where a variety jumps, with both ends. `predecessors` is `variety` of the reversed words."""
    size = len(word)
    after = [successors[word[:n]] for n in range(size + 1)]
    backwards = word[::-1]
    before = [predecessors[backwards[: size - n]] for n in range(size + 1)]
    inner = [
        n for n in range(1, size) if (n > 1 and after[n] > after[n - 1]) or (n < size - 1 and before[n] > before[n + 1])
    ]
    return [0, *inner, size]


def _between_cuts(words: Mapping[str, int], max_bytes: int) -> Counter[str]:
    successors = variety(words)
    predecessors = variety([word[::-1] for word in words])
    found: Counter[str] = Counter()
    for word, count in words.items():
        places = cuts(word, successors, predecessors)
        for n, start in enumerate(places):
            for end in places[n + 1 :]:
                if end - start > max_bytes:
                    break
                found[word[start:end]] += count
    return found


# ---------------------------------------------------------------------------------------------------------------------


def _part(texts: Sequence[str], segments: int) -> list[bytes]:
    """Evenly spaced texts: what the rounds encode."""
    wanted = max(_ROUND_BYTES, _ROUND_BYTES_EACH * segments)
    step = max(1, sum(map(len, texts)) // wanted)
    return [text.encode() for text in texts[::step]]


def _strongest(pool: list[bytes], fixed: list[bytes], wanted: int, texts: list[bytes]) -> list[bytes]:
    """Step 6: `pool` without its weakest, round by round; `fixed` stay, in front."""
    for share in _ROUNDS:
        left = max(wanted, int(share * wanted))
        if len(pool) > left:
            strength = _strengths(pool, texts)
            rest = sorted(set(pool).difference(fixed), key=lambda segment: (-strength[segment], segment))
            pool = [*fixed, *rest][:left]
    return pool


def _strengths(segments: list[bytes], texts: list[bytes]) -> dict[bytes, int]:
    """Tokens that each segment saves in `texts`, among the others."""
    find = bytes_pattern(segments).findall
    uses: Counter[bytes] = Counter()
    for text in texts:
        uses.update(find(text))
    known = set(segments)
    return {segment: uses[segment] * (_pieces(segment, known, find) - 1) for segment in segments}


def _pieces(segment: bytes, known: set[bytes], find: Callable[[bytes], list[bytes]]) -> int:
    """Tokens that the bytes of `segment` take when it is not there itself."""
    first = len(segment) - 1
    while first > 1 and segment[:first] not in known:
        first -= 1
    return 1 + len(find(segment[first:]))
