"""Batches on their way to the card: packed into pinned memory, copied in the order of the stream, never waited for.

One step is one block of int32 words: Rates (see kernels/control.cuh), then per microbatch its tokens (rows, T + 1), the
positions sorted by token, and where each token's positions begin. Sorting is done here because the host has the time.
"""

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.buffers import WINDOW_STEPS, batch_words
from andrea.engine.cuda.device import Device
from andrea.engine.cuda.model import Batch
from andrea.engine.cuda.tensor import Tensor
from andrea.experiment import Shape, TrainSpec

RATES_WORDS = 4


class Feed:
    """A pinned ring of as many slots as a window has steps, and the one place on the card that the graph reads."""

    def __init__(self, device: Device, shape: Shape, train: TrainSpec, target: Tensor) -> None:
        self._device, self._shape, self._train, self._target = device, shape, train, target
        self._rows = train.batch_size // train.microbatches
        words = batch_words(shape, self._rows, train.microbatches)
        self._slots = device.pinned(4 * WINDOW_STEPS * words).view(np.int32).reshape(WINDOW_STEPS, words)

    @property
    def rates(self) -> Tensor:
        return Tensor(self._target.address, (RATES_WORDS,), "float32")

    def batch(self, micro: int) -> Batch:
        """Where microbatch `micro` lies on the card."""
        offsets = self._offsets(micro)
        context, v = self._shape.context, self._shape.vocab_size
        return Batch(
            self._target.part(offsets[0], self._rows, context + 1),
            self._target.part(offsets[1], self._rows * context),
            self._target.part(offsets[2], v + 1),
        )

    def send(self, slot: int, batch: NDArray[np.int32], lr: float, step: int) -> None:
        """Pack `batch` (B, T + 1) into a slot and start its copy. `step` is 1 for the first update of a run."""
        words = self._slots[slot]
        t = self._train
        rates = (lr, 1 / (1 - t.beta1**step), 1 / (1 - t.beta2**step), 0.0)
        words[:RATES_WORDS] = np.array(rates, np.float32).view(np.int32)
        for micro, rows in enumerate(np.split(batch, t.microbatches)):
            self._pack(words, micro, rows)
        self._device.send(self._target, words)

    def send_rows(self, rows: NDArray[np.int32]) -> None:
        """Only tokens, into microbatch 0, for an evaluation; waits for earlier work, since it uses slot 0."""
        self._device.wait()
        start, size = self._offsets(0)[0], rows.size
        self._slots[0, start : start + size] = rows.reshape(-1)
        self._device.send(self._target.part(start, size), self._slots[0, start : start + size])

    def _pack(self, words: NDArray[np.int32], micro: int, rows: NDArray[np.int32]) -> None:
        tokens, order, first = self._offsets(micro)
        ids = rows[:, :-1].reshape(-1)
        v = self._shape.vocab_size
        narrow = ids.astype(np.uint16) if v <= 1 << 16 else ids  # NumPy sorts 16 bits by radix, ten times faster
        words[tokens : tokens + rows.size] = rows.reshape(-1)
        words[order : order + ids.size] = np.argsort(narrow, kind="stable")
        words[first] = 0
        words[first + 1 : first + 1 + v] = np.cumsum(np.bincount(ids, minlength=v))

    def _offsets(self, micro: int) -> tuple[int, int, int]:
        n, v = self._rows * self._shape.context, self._shape.vocab_size
        tokens = self._rows * (self._shape.context + 1)
        start = RATES_WORDS + micro * (tokens + n + v + 1)
        return start, start + tokens, start + tokens + n
