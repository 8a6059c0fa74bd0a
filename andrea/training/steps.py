"""What one call of the engine gave: a few finished steps of one window, and what the history says of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from andrea.runfiles import Record, step_record


@dataclass(frozen=True)
class Steps:
    """The steps after step `before`. Losses in nats per token, norms before clipping, `seconds` a step."""

    before: int
    window: int
    sources: Sequence[str]
    losses: list[float]
    norms: list[float]
    rates: list[float]
    seconds: float

    @property
    def good(self) -> int:
        """How many there are before the first whose loss or norm is not finite."""
        pairs = zip(self.losses, self.norms, strict=True)
        return next((i for i, pair in enumerate(pairs) if not all(map(math.isfinite, pair))), len(self.losses))

    def records(self) -> list[Record]:
        """One for each step."""
        columns = zip(self.sources, self.losses, self.norms, self.rates, strict=True)
        return [
            step_record(self.before + i, source, self.window, loss, norm, rate, 1e3 * self.seconds)
            for i, (source, loss, norm, rate) in enumerate(columns, 1)
        ]
