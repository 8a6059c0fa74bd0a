"""What every engine refuses before it starts to work: foreign states, wrong batches, impossible prompts."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from andrea.engine.interface import Choice
from andrea.engine.kernels import Array
from andrea.engine.layout import count
from andrea.errors import EngineError
from andrea.experiment import Shape


def check_state(shape: Shape, weights: Array, m: Array, v: Array) -> None:
    """EngineError unless the three are flat vectors of this model's size."""
    n = count(shape)
    for name, source in (("weights", weights), ("m", m), ("v", v)):
        if source.shape != (n,):
            raise EngineError(
                f"{name} must be a flat vector of {n} numbers for this model",
                got=f"shape {source.shape}",
                fix="load a checkpoint of the same model section",
            )


def check_tokens(shape: Shape, blocks: NDArray[np.int32], lead: tuple[int, ...]) -> None:
    """EngineError unless blocks are int32 token ids of shape (*lead, T+1)."""
    want = (*lead, shape.context + 1)
    if blocks.shape != want or blocks.dtype != np.int32:
        raise EngineError(
            f"a batch must be int32 of shape {want}",
            got=f"{blocks.dtype} of shape {blocks.shape}",
            fix="draw batches with this experiment's batch_size and context",
        )
    if blocks.size and not (blocks.min() >= 0 and blocks.max() < shape.vocab_size):
        raise EngineError(
            f"tokens must lie in 0..{shape.vocab_size - 1}",
            got=f"{blocks.min()}..{blocks.max()}",
            fix="make the token files again with this experiment's tokenizer",
        )


def each_batch(
    shape: Shape, batches: Iterable[NDArray[np.int32]], rows: int, steps: int
) -> Iterator[NDArray[np.int32]]:
    """`batches` (rows, T+1), each taken and checked when it is asked for; EngineError unless there are `steps` of them."""
    what, fix, count = "there must be a batch for each learning rate", "draw as many", 0
    for batch in batches:
        if count == steps:
            raise EngineError(what, got=f"more than {steps}", fix=fix)
        check_tokens(shape, batch, (rows,))
        count += 1
        yield batch
    if count < steps:
        raise EngineError(what, got=f"{count} for {steps}", fix=fix)


def check_prompts(shape: Shape, prompts: list[list[int]], tokens: int, choice: Choice) -> None:
    """EngineError unless every prompt leaves room for one token and the settings make sense."""
    room = shape.context - 1
    for i, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= room:
            raise EngineError(
                f"a prompt must have 1 to {room} tokens, so that one more fits the context",
                got=f"prompt {i} has {len(prompt)}",
                fix="shorten the prompt, or raise model.context",
            )
        if min(prompt) < 0 or max(prompt) >= shape.vocab_size:
            raise EngineError(
                f"a prompt's tokens must lie in 0..{shape.vocab_size - 1}",
                got=f"{min(prompt)}..{max(prompt)} in prompt {i}",
                fix="encode the prompt with this model's tokenizer",
            )
    check_choice(choice, tokens)


def check_choice(choice: Choice, tokens: int) -> None:
    """EngineError unless the settings of sampling make sense."""
    if tokens < 0 or choice.top_k < 0 or not 0 <= choice.temperature < float("inf") or not 0 < choice.top_p <= 1:
        raise EngineError(
            "tokens and top_k must be 0 or more, temperature finite and 0 or more, top_p above 0 and at most 1",
            got=f"tokens {tokens}, top_k {choice.top_k}, temperature {choice.temperature}, top_p {choice.top_p}",
            fix="change that setting; temperature 0 takes the likeliest token, top_k 0 and top_p 1 leave none out",
        )
