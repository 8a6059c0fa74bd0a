"""One optimizer update: add up the partitions' gradients, mean over microbatches, clip, AdamW, clear.

Work is cut into spans that depend on the parameter count and the partition count only.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from andrea.engine.kernels import NORM_CHUNK, Array, Kernels
from andrea.engine.layout import decay_groups
from andrea.engine.workers import Workers
from andrea.experiment import Shape, TrainSpec


class Update:
    """The optimizer over flat buffers; `grads` are the partitions' gradients, the first one receives the sum."""

    def __init__(
        self,
        shape: Shape,
        train: TrainSpec,
        kernels: Kernels,
        workers: Workers,
        state: Mapping[str, Array],
        grads: Sequence[Array],
    ) -> None:
        self._train, self._k, self._workers, self._grads = train, kernels, workers, grads
        self._w, self._m, self._v, self._partials = (state[n] for n in ("weights", "m", "v", "partials"))
        self._spans = _spans(len(self._w), train.partitions)
        self._groups = [_groups(shape, span) for span in self._spans]

    def norm(self) -> float:
        """Sum the gradients into the first; the L2 norm of their mean over microbatches."""
        self._workers.each(len(self._spans), self._reduce)
        return self._k.k_grad_norm_final(self._partials) / self._train.microbatches

    def apply(self, norm: float, lr: float, step: int) -> None:
        """Update the weights and clear the gradients; `step` is 1 for the first, `norm` what norm() returned."""
        clip = self._train.clip
        scale = (clip / norm if norm > clip else 1.0) / self._train.microbatches

        def run(i: int) -> None:
            t = self._train
            if scale != 1:
                self._k.k_grad_scale(self._grads[0][self._spans[i]], scale)
            for span, decays in self._groups[i]:
                decay = t.weight_decay if decays else 0.0
                arrays = (a[span] for a in (self._w, self._m, self._v, self._grads[0]))
                self._k.k_adamw(*arrays, lr, t.beta1, t.beta2, t.eps, decay, step)
            self._clear(i)

        self._workers.each(len(self._spans), run)

    def clear(self) -> None:
        """Zero every partition's gradient."""
        self._workers.each(len(self._spans), self._clear)

    def _clear(self, i: int) -> None:
        for grad in self._grads:
            self._k.k_zero_grads(grad[self._spans[i]])

    def _reduce(self, i: int) -> None:
        span = self._spans[i]
        total = self._grads[0][span]
        for other in self._grads[1:]:
            np.add(total, other[span], out=total)
        chunks = slice(span.start // NORM_CHUNK, math.ceil(span.stop / NORM_CHUNK))
        self._k.k_grad_norm_partial(self._partials[chunks], total)


def _spans(n: int, parts: int) -> list[slice]:
    """Up to `parts` slices of n floats; all but the last end on a chunk of the norm."""
    chunks = math.ceil(n / NORM_CHUNK)
    bounds = sorted({chunks * i // parts for i in range(parts + 1)})
    return [slice(a * NORM_CHUNK, min(b * NORM_CHUNK, n)) for a, b in pairwise(bounds)]


def _groups(shape: Shape, span: slice) -> list[tuple[slice, bool]]:
    """The decay groups inside a span."""
    cut = ((max(a, span.start), min(b, span.stop), decays) for a, b, decays in decay_groups(shape))
    return [(slice(a, b), decays) for a, b, decays in cut if a < b]
