"""What every engine can do. The trainer knows this and nothing else of an engine."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from andrea.engine.plan import MemoryPlan

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Snapshot:
    """A copy of the training state: finished updates, and flat float32 vectors in layout order."""

    step: int
    weights: Floats
    m: Floats
    v: Floats


@dataclass(frozen=True)
class Choice:
    """How a token is drawn from softmax(logits / temperature).

    First only the top_k likeliest stay, then only the likeliest that together reach top_p of what those had. Temperature
    0 takes the likeliest; top_k 0 and top_p 1 cut nothing.
    """

    temperature: float
    top_k: int
    top_p: float = 1.0


class Engine(Protocol):
    """B rows a batch, T context, S steps. Tokens are int32; losses are in nats."""

    def plan(self) -> MemoryPlan:
        """Every buffer, known before the first one is used."""
        ...

    def load(self, weights: Floats, m: Floats, v: Floats, step: int) -> None:
        """Take over a state of `step` finished updates."""
        ...

    def run(self, batches: Iterable[NDArray[np.int32]], lrs: NDArray[np.float64]) -> tuple[Floats, Floats]:
        """One update for each of S batches (B, T+1) at lrs (S,): losses and gradient norms (S,).

        A batch is taken when its step is next to be begun, which may be long before the step before it has ended. The
        iterator is followed to its end before any result is waited for: what it does besides costs no time on a card.
        A loss or norm that is not finite: that update and all later ones of this call are left out.
        """
        ...

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        """Copies of the state, in new memory or in that of an earlier snapshot."""
        ...

    def state(self) -> dict[str, Any]:
        """What an exact resume needs beside the snapshot, as JSON values; empty where there is nothing."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what state() gave, before the first load(). Raises CheckpointError when it is not a state of this engine."""
        ...

    def versions(self) -> dict[str, str]:
        """What of this engine's own may change the bits of a result: card, driver, libraries."""
        ...

    def evaluate(self, blocks: NDArray[np.int32]) -> NDArray[np.float64]:
        """Nats of blocks (N, T+1), each summed over its T targets: (N,)."""
        ...

    def generate(self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int) -> list[list[int]]:
        """`tokens` new tokens after each prompt, drawn from the random numbers of (seed, step)."""
        ...

    def begin_generate(
        self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
    ) -> Callable[[], list[list[int]]]:
        """generate() in two halves: the call of what is returned gives the tokens. Between them only evaluate() and
        snapshot() may be called, which a card may do at the same time.
        """
        ...

    def describe(self) -> str:
        """One line: engine, device, precision, threads, and why."""
        ...


class Inference(Protocol):
    """A model in use, without what only training needs. One call at a time, the tokens of a stream included."""

    def take(self, weights: Floats) -> None:
        """Use these weights, flat float32 in layout order."""
        ...

    def stream(self, prompt: list[int], tokens: int, choice: Choice, seed: int, step: int) -> Iterator[int]:
        """The tokens that generate() of this engine gives after a first prompt, each as soon as it is there."""
        ...

    def losses(self, blocks: NDArray[np.int32]) -> Floats:
        """Nats of every target of blocks (N, T+1): (N, T)."""
        ...

    def describe(self) -> str:
        """One line: engine, device, precision, threads."""
        ...
