"""The CUDA engine for a model in use: the training engine with a small batch, whose optimizer is never run.

A model that was trained in fp8 is used in bf16, as training itself samples: the scales of E4M3 numbers follow from the last
training steps and belong to the run's state, which a model does not have.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from andrea.engine.checks import check_prompts, check_tokens
from andrea.engine.cuda.buffers import PROMPT_ROWS
from andrea.engine.cuda.engine import CudaEngine
from andrea.engine.cuda.nvrtc import ACT
from andrea.engine.interface import Choice, Floats
from andrea.errors import EngineError
from andrea.experiment import Shape, TrainSpec

_IN_USE = {"fp8": "bf16"}


class CudaInference(CudaEngine):
    """Inference in `precision`; logits are rounded to 16 bits where that has them."""

    def __init__(self, shape: Shape, precision: str) -> None:
        if precision not in ACT:
            raise EngineError(
                f"precision must be one of {', '.join(ACT)}", got=precision, fix="leave out --engine cuda"
            )
        self._trained = precision
        try:
            super().__init__(shape, bare_spec(_IN_USE.get(precision, precision)))
        except EngineError as cause:  # its way out is a change of the training, which is over
            fix = "leave out --engine cuda; `andrea doctor` says what the card or its packages miss"
            raise EngineError(cause.must, got=cause.got, fix=fix) from cause

    def take(self, weights: Floats) -> None:
        """Use these weights, flat float32 in layout order."""
        zeros = np.zeros_like(weights)
        self.load(weights, zeros, zeros, 0)

    def stream(self, prompt: list[int], tokens: int, choice: Choice, seed: int, step: int) -> Iterator[int]:
        """`tokens` tokens after a prompt of 1 to T - 1 tokens, one by one; see andrea.engine.cuda.generate."""
        check_prompts(self._shape, [prompt], tokens, choice)
        return self._sampler.stream(prompt, tokens, choice, seed, step)

    def losses(self, blocks: NDArray[np.int32]) -> Floats:
        """Nats of every target. blocks (N, T+1) int32; returns (N, T) float32."""
        check_tokens(self._shape, blocks, (len(blocks),))
        found = np.zeros((len(blocks), self._shape.context), np.float32)
        for start in range(0, len(blocks), self._rows):
            part = blocks[start : start + self._rows]
            self.evaluate(part)
            rows = self._device.read(self._buffers["losses"]).reshape(self._rows, -1)
            found[start : start + len(part)] = rows[: len(part)]
        return found

    def describe(self) -> str:
        """One line: what runs."""
        line = super().describe().removesuffix(", asked for by train.engine")
        return f"{line}; {self._trained}'s scales stay with the run" if self._trained in _IN_USE else line


def bare_spec(precision: str) -> TrainSpec:
    """A train section with the batch of a model in use; its rates and its clipping are zero, as nothing is trained."""
    return TrainSpec(
        engine="cuda",
        precision=precision,
        seed=0,
        batch_size=PROMPT_ROWS,
        microbatches=1,
        recompute=False,
        steps=1,
        horizon=1,
        lr=0.0,
        min_lr_ratio=0.0,
        warmup_steps=0,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.0,
        clip=1.0,
        partitions=1,
    )
