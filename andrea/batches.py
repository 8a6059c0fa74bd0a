"""From a plan to token ids: which blocks each step reads, without replacement within an epoch, and no hidden state.

A source's packed tokens are cut into blocks of T+1 tokens at stride T, so that every token but the first is a target
once; a block may cross documents at their BOS, and fewer than T tokens at the very end are never read. Each epoch
visits every block once, in an order that follows from (seed, source, epoch). The place in that order is the number
of rows drawn before, pulls * B: a resumed run reads on exactly where it was. A source shorter than a batch wraps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from andrea.btok import Btok
from andrea.errors import DataError
from andrea.shuffle import round_keys, shuffled


def block_count(tokens: Btok, context: int, what: str) -> int:
    """Blocks of T+1 tokens at stride T; DataError when there is none."""
    blocks = (len(tokens.tokens) - 1) // context
    if blocks < 1:
        raise DataError(
            f"{what} must hold at least one block of {context + 1:,} tokens (model.context + 1)",
            got=f"{len(tokens.tokens):,} tokens",
            fix="give it more text, lower model.context, or take the source out of the experiment",
        )
    return blocks


def read_blocks(tokens: Btok, blocks: NDArray[np.int64], context: int) -> NDArray[np.int32]:
    """(k,) block numbers -> (k, T+1) token ids."""
    return sliding_window_view(tokens.tokens, context + 1)[blocks * context].astype(np.int32)


class Batches:
    """Draws (B, T+1) token ids a step from token files; B rows, all of one source."""

    def __init__(self, tokens: Mapping[str, Btok], context: int, batch_size: int, seed: int) -> None:
        self.tokens, self.context, self.batch_size, self.seed = dict(tokens), context, batch_size, seed
        self.counts = {name: block_count(t, context, f"the source {name}") for name, t in self.tokens.items()}
        self._keys: dict[tuple[str, int], NDArray[np.uint64]] = {}

    def draw(self, source: str, pulls_before: int) -> NDArray[np.int32]:
        """(B, T+1) ids of one step that draws from `source` after `pulls_before` earlier draws from it."""
        return read_blocks(self.tokens[source], self.blocks(source, pulls_before), self.context)

    def blocks(self, source: str, pulls_before: int) -> NDArray[np.int64]:
        """(B,) block numbers that `draw` reads."""
        blocks: NDArray[np.int64] = self._blocks([source], np.array([pulls_before]))[0]
        return blocks

    def draw_steps(self, sources: Sequence[str], pulls: Mapping[str, int]) -> NDArray[np.int32]:
        """(S, B, T+1) ids of S steps at once, equal to S calls of `draw`; `pulls` is what came before them."""
        blocks = self._blocks(sources, self._pulls_before(sources, pulls))
        ids = np.empty((*blocks.shape, self.context + 1), np.int32)
        arms = np.array(sources)
        for source in set(sources):
            steps = arms == source
            rows = read_blocks(self.tokens[source], blocks[steps].ravel(), self.context)
            ids[steps] = rows.reshape(-1, *ids.shape[1:])
        return ids

    def documents(self, source: str, block: int) -> range:
        """Numbers of the documents that block `block` touches, for messages and audits."""
        first, last = block * self.context, (block + 1) * self.context
        low, high = np.searchsorted(self.tokens[source].offsets, [first, last], side="right") - 1
        return range(int(low), int(high) + 1)

    def epochs(self, source: str, pulls: int) -> float:
        """How often `pulls` draws have gone through the source."""
        return pulls * self.batch_size / self.counts[source]

    @staticmethod
    def _pulls_before(sources: Sequence[str], pulls: Mapping[str, int]) -> NDArray[np.int64]:
        """(S,) draws from each step's source before that step."""
        seen = {source: pulls.get(source, 0) for source in set(sources)}
        before = np.empty(len(sources), np.int64)
        for step, source in enumerate(sources):
            before[step] = seen[source]
            seen[source] += 1
        return before

    def _blocks(self, sources: Sequence[str], pulls_before: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) sources and draws before -> (S, B) block numbers; one vectorised walk for all of them."""
        rows = pulls_before[:, None] * self.batch_size + np.arange(self.batch_size)  # (S, B)
        counts = np.array([self.counts[source] for source in sources])[:, None]
        epochs, places = np.divmod(rows, counts)
        names = sorted(set(sources))
        arms = np.array([names.index(source) for source in sources])[:, None]
        used, which = np.unique(epochs * len(names) + arms, return_inverse=True)
        keys = np.stack([self._key(names[arm], epoch) for epoch, arm in np.stack(np.divmod(used, len(names)), 1)], 1)
        flat = shuffled(places.ravel(), np.broadcast_to(counts, rows.shape).ravel(), keys[:, which.ravel()])
        return flat.reshape(rows.shape)

    def _key(self, source: str, epoch: int) -> NDArray[np.uint64]:
        key = self._keys.get((source, epoch))
        if key is None:
            if len(self._keys) > 4096:  # a source of one block has an epoch a row
                self._keys.clear()
            key = self._keys[source, epoch] = round_keys(self.seed, source, epoch)
        return key
