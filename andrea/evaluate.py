"""How well a model predicts held-out text: nats per token, and bits per byte, which tokenizers share.

Held-out text is cut into the same blocks as training text, and some of them, evenly spread, are fixed for the whole
run. The first token of a block is context only. Bits per byte counts the bytes of the T targets; BOS has none.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.batches import block_count, cut_blocks
from andrea.btok import Btok
from andrea.engine import Engine
from andrea.errors import EngineError

Rates = dict[str, float]
MORE_BLOCKS = 4  # the final evaluation reads so many times validation.blocks


@dataclass(frozen=True)
class HeldOut:
    """Blocks of one source, (N, T+1) ids, and how many bytes their targets stand for."""

    blocks: NDArray[np.int32]
    bytes: int

    @property
    def tokens(self) -> int:
        """Targets: N * T."""
        return self.blocks[:, 1:].size

    def rates(self, nats: float) -> Rates:
        """Of `nats` summed over all targets."""
        return rates(nats, self.tokens, self.bytes)


def rates(nats: float, tokens: int, size: int) -> Rates:
    """Of `nats` summed over `tokens` targets, which stand for `size` bytes."""
    return {"nats_per_token": nats / tokens, "bits_per_byte": nats / math.log(2) / max(size, 1)}


def hold_out(source: str, tokens: Btok, context: int, most: int, token_bytes: list[bytes]) -> HeldOut:
    """At most `most` blocks, evenly spread over the source's held-out tokens; DataError when there is no block."""
    count = block_count(tokens, context, f"the held-out text of {source}")
    chosen = np.unique((np.arange(min(most, count)) + 0.5) * count // min(most, count)).astype(np.int64)
    blocks = cut_blocks(tokens, context)[chosen].astype(np.int32)
    lengths = np.array([len(data) for data in token_bytes])
    return HeldOut(blocks, int(lengths[blocks[:, 1:]].sum()))


def evaluate(
    engine: Engine, heldout: Mapping[str, HeldOut], rows: int, stopped: Callable[[], bool]
) -> dict[str, Rates] | None:
    """Rates of the engine's weights on each source. None as soon as `stopped()`, which is asked every `rows` blocks.

    The engine always sees the same groups of blocks, whatever else happens, so that its sums repeat exactly.
    EngineError when a loss is not finite: a record could not hold it, and the weights are of no more use.
    """
    results = {}
    for source, held in heldout.items():
        nats: list[float] = []
        for first in range(0, len(held.blocks), rows):
            if stopped():
                return None
            nats += engine.evaluate(held.blocks[first : first + rows]).tolist()
        bad = [number for number in nats if not math.isfinite(number)]
        if bad:
            raise EngineError(
                f"the loss on the held-out text of {source} must be finite",
                got=f"{bad[0]} in {len(bad)} of {len(nats)} blocks",
                fix="train anew with a lower train.lr or a higher train.warmup_steps; the checkpoints so far are kept",
            )
        results[source] = held.rates(math.fsum(nats))
    return results
