"""The MLP's two products around GELU with GELU in them, on Hopper in 16 bits: kernels/mlp_wgmma.cu and what it is launched with.

Elsewhere, and where the width has no whole tiles, GELU is a kernel of its own between products of cuBLASLt.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.tensor_map import COLUMNS, WORDS

FILE: Final = "mlp_wgmma.cu"
ARCH: Final = 90
PRECISIONS: Final = ("bf16", "fp16")
MAPS: Final = 2  # of a launch
BLOCK: Final = 640
EDGE, DEPTH, STAGES, PARKS = 128, 64, 5, 2  # as in kernels/product_wgmma.cuh
BARRIERS = 2 * STAGES + 2 * PARKS
SHARED: Final = 2 * (STAGES * 2 * EDGE * DEPTH + PARKS * EDGE * EDGE) + 8 * BARRIERS  # bytes
DEFINES: Final = {"SHARED_BYTES": SHARED}  # the file asserts it


def has_maps(precision: str, width: int) -> bool:
    """Whether a model of this width has whole tiles, and its precision the pair."""
    return precision in PRECISIONS and width % DEPTH == 0


def is_fused(arch: int, precision: str, width: int) -> bool:
    """Whether the pair computes such a model on such a card."""
    return arch == ARCH and has_maps(precision, width)


class FusedMlp:
    """Launches of the pair. `maps` (launches, MAPS, WORDS) int32 is filled launch by launch as they are bound."""

    def __init__(self, device: Device, precision: str, maps: Tensor) -> None:
        self._device, self._maps, self._bound = device, maps, 0
        self._grid = (device.multiprocessors,)
        self._forward, self._backward = (self._kernel(name, precision) for name in ("k_mlp_gelu_fwd", "k_mlp_gelu_bwd"))

    def forward(self, h: Tensor, a: Tensor, x: Tensor, w: Tensor) -> Callable[[], None]:
        """A call that assigns h = x w and a = gelu(h), both (N, O), from x (N, I) and w (I, O)."""
        maps, sizes = self._encode((x, EDGE), (w, COLUMNS)), (*x.shape, h.shape[1])
        return lambda: self._forward(self._grid, BLOCK, h, a, x, w, maps, *sizes, shared=SHARED)

    def backward(self, dh: Tensor, a: Tensor, dy: Tensor, w: Tensor, h: Tensor) -> Callable[[], None]:
        """A call that assigns dh = (dy w') gelu'(h) and a = gelu(h), both (N, O), from dy (N, I) and w (O, I)."""
        maps, sizes = self._encode((dy, EDGE), (w, EDGE)), (*dy.shape, h.shape[1])
        return lambda: self._backward(self._grid, BLOCK, dh, a, dy, w, h, maps, *sizes, shared=SHARED)

    def _encode(self, *boxes: tuple[Tensor, int]) -> Tensor:
        """The maps of the next launch on the card, from matrices and the rows of their boxes."""
        words = np.stack([self._device.tensor_map(matrix, rows) for matrix, rows in boxes])
        place = self._maps.part(self._bound * words.size, MAPS, WORDS)
        self._device.write(place, words)
        self._bound += 1
        return place

    def _kernel(self, name: str, precision: str) -> Kernel:
        return self._device.kernel(FILE, name, precision, DEFINES)
