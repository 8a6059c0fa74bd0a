"""The baseline that a model has to beat: an interpolated bigram, fitted on the same training tokens.

    p(next | previous) = a * bigram + b * unigram + c / V,  a + b + c = 1

The weights are fitted by expectation-maximisation on a tenth of the training tokens that was left out of the counting
(Jelinek and Mercer 1980, "Interpolated estimation of Markov source parameters from sparse data"). Where the previous
token was never counted, the unigram stands in for the bigram. Counts are sparse: V * V of them would not fit.
"""

import numpy as np
from numpy.typing import NDArray

SPAN = 1024  # tokens counted or left out together
MOST_TOKENS = 10_000_000  # of a source; more would change the baseline by little
_ROUNDS = 100
_CLOSE = 1e-7

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Bigram:
    """Fitted to (n,) token ids, n >= 2, below `vocab_size`."""

    def __init__(self, tokens: NDArray[np.integer], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        counted, left_out = _split(tokens[:MOST_TOKENS].astype(np.int64))
        previous, following = counted[:, :-1].ravel(), counted[:, 1:].ravel()
        self._codes, counts = np.unique(previous * vocab_size + following, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._previous = np.bincount(previous, minlength=vocab_size).astype(np.float64)
        self._unigram = np.bincount(following, minlength=vocab_size) / following.size
        self.weights = _fit(self._parts(left_out[:, :-1].ravel(), left_out[:, 1:].ravel()))

    def nats(self, blocks: NDArray[np.integer]) -> Floats:
        """(N, T+1) ids -> (N,) nats summed over the T targets of each block; the first token is context only."""
        ids = blocks.astype(np.int64)
        chances = self.weights @ self._parts(ids[:, :-1].ravel(), ids[:, 1:].ravel())
        result: Floats = -np.log(chances).reshape(len(blocks), -1).sum(axis=1)
        return result

    def _parts(self, previous: Ids, following: Ids) -> Floats:
        """(n,) and (n,) ids -> (3, n) chances under bigram, unigram and uniform."""
        code = previous * self.vocab_size + following
        at = np.minimum(np.searchsorted(self._codes, code), len(self._codes) - 1)
        counts = np.where(self._codes[at] == code, self._counts[at], 0.0)
        unigram = self._unigram[following]
        seen = self._previous[previous]
        bigram = np.where(seen > 0, counts / np.maximum(seen, 1), unigram)
        return np.stack([bigram, unigram, np.full(len(code), 1 / self.vocab_size)])


def _split(tokens: Ids) -> tuple[Ids, Ids]:
    """Spans (n, span) to count and spans (m, span) to fit the weights on: every tenth span is left out."""
    span = max(2, min(SPAN, len(tokens) // 20))
    spans = tokens[: len(tokens) // span * span].reshape(-1, span)
    out = np.arange(len(spans)) % 10 == 9
    return spans[~out], spans[out] if out.any() else spans


def _fit(parts: Floats) -> Floats:
    """(3, n) chances -> (3,) weights that make the n pairs likeliest."""
    weights = np.full(3, 1 / 3)
    for _ in range(_ROUNDS):
        shares = weights[:, None] * parts
        updated = (shares / shares.sum(axis=0)).mean(axis=1)
        close = np.abs(updated - weights).max() < _CLOSE
        weights = updated
        if close:
            break
    weights[2] = max(weights[2], 1e-9)  # a pair that was never seen must keep a chance
    result: Floats = weights / weights.sum()
    return result
