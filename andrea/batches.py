"""From a plan to token ids: which blocks each step reads, without replacement within an epoch, and no hidden state.

A source's packed tokens are cut into blocks of T+1 tokens at stride T, so that every token but the first is a target
once; a block may cross documents at their BOS, and fewer than T tokens at the very end are never read. Each epoch
visits every block once, in an order that follows from (seed, source, epoch). The place in that order is the number
of rows drawn before, pulls * B: a resumed run reads on exactly where it was. A source shorter than a batch wraps.
"""

from collections.abc import Iterator, Mapping, Sequence
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
        self._places = {name: place for place, name in enumerate(sorted(self.tokens))}
        self._asked: tuple[tuple[str, ...], tuple[int, ...]] = ((), ())
        self._answer = np.empty((0, batch_size), np.int64)
        self._ready: dict[tuple[str, int], NDArray[np.int64]] = {}
        self._touched: tuple[Any, tuple[NDArray[np.int64], NDArray[np.int64]]] = ((), (self._answer[0:0, 0],) * 2)
        self._opened: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def draw(self, source: str, pulls_before: int) -> NDArray[np.int32]:
        """(B, T+1) ids of one step that draws from `source` after `pulls_before` earlier draws from it."""
        return self._views[source][self.blocks(source, pulls_before)].astype(np.int32)

    def blocks(self, source: str, pulls_before: int) -> NDArray[np.int64]:
        """(B,) block numbers that `draw` reads."""
        blocks: NDArray[np.int64] = self._blocks([source], [pulls_before])[0]
        return blocks

    def draw_steps(self, sources: Sequence[str], pulls: Mapping[str, int]) -> Iterator[NDArray[np.int32]]:
        """(B, T+1) ids of each of S steps, as `draw` gives them; `pulls` is what came before them.

        The first needs no more work than it must, for a card may be waiting for it.
        """
        ready = self._ready.get((sources[0], pulls.get(sources[0], 0)))
        if ready is not None:
            yield self._views[sources[0]][ready].astype(np.int32)
        blocks = self._step_blocks(sources, pulls)
        for step in range(ready is not None, len(sources)):
            yield self._views[sources[step]][blocks[step]].astype(np.int32)

    def make_ready(self, pulls: Mapping[str, int]) -> None:
        """Find the blocks of the next step on each source, whichever comes, with `pulls` before it."""
        names = list(self._places)
        before = [pulls.get(name, 0) for name in names]
        self._ready = dict(zip(zip(names, before, strict=True), self._blocks(names, before), strict=True))

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
        asked = tuple(sources), self._pulls_before(sources, pulls)
        if self._touched[0] != asked:
            self._touched = asked, self._find_touched(sources, pulls)
        return self._touched[1]

    def _find_touched(
        self, sources: Sequence[str], pulls: Mapping[str, int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        arms = np.repeat([self._places[source] for source in sources], self.batch_size)
        opened, first = self._boundaries()
        bounds = self._step_blocks(sources, pulls).ravel() + first[arms]
        low = opened[bounds]
        counts = opened[bounds + 1] - low + 1
        numbers = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return np.repeat(arms, counts), numbers

    def _boundaries(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which document each block's first token belongs to, and its last one, which is the next block's first.

        All sources behind one another, by name, each with one boundary more than blocks; and where each begins.
        """
        if self._opened is None:
            each = [self._open_documents(name) for name in self._places]
            self._opened = np.concatenate(each), np.cumsum([0, *map(len, each[:-1])])
        return self._opened

    def _open_documents(self, source: str) -> NDArray[np.int64]:
        starts = np.arange(self.counts[source] + 1) * self.context
        return np.searchsorted(self.tokens[source].offsets, starts, side="right") - 1

    def epochs(self, source: str, pulls: int) -> float:
        """How often `pulls` draws have gone through the source."""
        return pulls * self.batch_size / self.counts[source]

    def _step_blocks(self, sources: Sequence[str], pulls: Mapping[str, int]) -> NDArray[np.int64]:
        """(S, B) blocks of S steps; the last answer is kept, since a window is drawn first and accounted for later."""
        asked = tuple(sources), self._pulls_before(sources, pulls)
        if self._asked != asked:
            self._asked, self._answer = asked, self._blocks(*asked)
        return self._answer

    @staticmethod
    def _pulls_before(sources: Sequence[str], pulls: Mapping[str, int]) -> tuple[int, ...]:
        """(S,) draws from each step's source before that step."""
        seen = {source: pulls.get(source, 0) for source in set(sources)}
        before = []
        for source in sources:
            before.append(seen[source])
            seen[source] += 1
        return tuple(before)

    def _blocks(self, sources: Sequence[str], pulls_before: Sequence[int]) -> NDArray[np.int64]:
        """(S,) sources and draws before -> (S, B) block numbers; one vectorised walk for all of them."""
        lengths, places, counts, keys = [], [], [], []  # of each run of rows within one epoch
        for source, pulls in zip(sources, pulls_before, strict=True):
            count, left = self.counts[source], self.batch_size
            epoch, place = divmod(pulls * left, count)
            while left:
                length = min(left, count - place)
                lengths.append(length)
                places.append(place)
                counts.append(count)
                keys.append(self._key(source, epoch))
                left, epoch, place = left - length, epoch + 1, 0
        begins: NDArray[np.int64] = np.cumsum(lengths) - np.array(lengths)
        rows = np.repeat(np.array(places, np.int64) - begins, lengths) + np.arange(len(sources) * self.batch_size)
        order = shuffled(rows, np.repeat(counts, lengths), np.repeat(np.array(keys).T, lengths, axis=1))
        return order.reshape(len(sources), self.batch_size)

    def _key(self, source: str, epoch: int) -> NDArray[np.uint64]:
        key = self._keys.get((source, epoch))
        if key is None:
            if len(self._keys) > 4096:  # a source of one block has an epoch a row
                self._keys.clear()
            key = self._keys[source, epoch] = round_keys(self.seed, source, epoch)
        return key
