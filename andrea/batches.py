"""From a plan to token ids: which blocks each step reads, without replacement within an epoch, and no hidden state.

A source's packed tokens are cut into blocks of T+1 tokens at stride T, so that every token but the first is a target
once; a block may cross documents at their BOS, and fewer than T tokens at the very end are never read. Each epoch
visits every block once, in an order that follows from (seed, source, epoch). The place in that order is the number
of rows drawn before, pulls * B: a resumed run reads on exactly where it was. A source shorter than a batch wraps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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


def cut_blocks(tokens: Btok, context: int) -> NDArray[Any]:
    """All blocks of a token file as a view, (blocks, T+1); nothing is read before it is indexed."""
    view: NDArray[Any] = sliding_window_view(tokens.tokens, context + 1)[::context]
    return view


class Batches:
    """Draws (B, T+1) token ids a step from token files; B rows, all of one source."""

    def __init__(self, tokens: Mapping[str, Btok], context: int, batch_size: int, seed: int) -> None:
        self.tokens, self.context, self.batch_size, self.seed = dict(tokens), context, batch_size, seed
        self.counts = {name: block_count(t, context, f"the source {name}") for name, t in self.tokens.items()}
        self._views = {name: cut_blocks(t, context) for name, t in self.tokens.items()}
        self._keys: dict[tuple[str, int], NDArray[np.uint64]] = {}
        self._asked: tuple[tuple[str, ...], bytes] = ((), b"")
        self._answer = np.empty((0, batch_size), np.int64)
        self._documents: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None

    def draw(self, source: str, pulls_before: int) -> NDArray[np.int32]:
        """(B, T+1) ids of one step that draws from `source` after `pulls_before` earlier draws from it."""
        return self._views[source][self.blocks(source, pulls_before)].astype(np.int32)

    def blocks(self, source: str, pulls_before: int) -> NDArray[np.int64]:
        """(B,) block numbers that `draw` reads."""
        blocks: NDArray[np.int64] = self._blocks([source], np.array([pulls_before]))[0]
        return blocks

    def draw_steps(self, sources: Sequence[str], pulls: Mapping[str, int]) -> NDArray[np.int32]:
        """(S, B, T+1) ids of S steps at once, equal to S calls of `draw`; `pulls` is what came before them."""
        blocks = self._step_blocks(sources, pulls)
        ids = np.empty((*blocks.shape, self.context + 1), np.int32)
        for source in set(sources):
            steps = [step for step, other in enumerate(sources) if other == source]
            ids[steps] = self._views[source][blocks[steps]]
        return ids

    def documents(self, source: str, block: int) -> range:
        """Numbers of the documents that block `block` touches, for messages and audits."""
        first, last = block * self.context, (block + 1) * self.context
        low, high = np.searchsorted(self.tokens[source].offsets, [first, last], side="right") - 1
        return range(int(low), int(high) + 1)

    def document_counts(self) -> dict[str, int]:
        """Documents of each source."""
        return {name: len(tokens.offsets) - 1 for name, tokens in self.tokens.items()}

    def touched(self, sources: Sequence[str], pulls: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which documents the steps on `sources` read from; `pulls` came before them.

        (k,) places of their sources in the sorted names, and (k,) numbers; repeats are left in.
        """
        blocks = self._step_blocks(sources, pulls) * self.context
        places = {name: place for place, name in enumerate(sorted(self.tokens))}
        arms = np.repeat([places[source] for source in sources], self.batch_size)
        firsts, tokens, documents = self._joined()
        starts = blocks.ravel() + tokens[arms]
        low, high = np.searchsorted(firsts, np.stack([starts, starts + self.context]), side="right") - 1
        counts = high - low + 1
        numbers = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        arms = np.repeat(arms, counts)
        return arms, numbers - documents[arms]

    def _joined(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """All sources behind one another, by name: where each document begins; tokens and documents before each."""
        if self._documents is None:
            files = [self.tokens[name] for name in sorted(self.tokens)]
            tokens = np.cumsum([0, *(len(file.tokens) for file in files[:-1])])
            documents = np.cumsum([0, *(len(file.offsets) - 1 for file in files[:-1])])
            firsts = np.concatenate([file.offsets[:-1] + before for file, before in zip(files, tokens, strict=True)])
            self._documents = firsts, tokens, documents
        return self._documents

    def epochs(self, source: str, pulls: int) -> float:
        """How often `pulls` draws have gone through the source."""
        return pulls * self.batch_size / self.counts[source]

    def _step_blocks(self, sources: Sequence[str], pulls: Mapping[str, int]) -> NDArray[np.int64]:
        """(S, B) blocks of S steps; the last answer is kept, since a window is drawn first and accounted for later."""
        before = self._pulls_before(sources, pulls)
        asked = (tuple(sources), before.tobytes())
        if self._asked != asked:
            self._asked, self._answer = asked, self._blocks(sources, before)
        return self._answer

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
