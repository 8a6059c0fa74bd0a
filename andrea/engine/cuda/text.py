"""Sampling in one launch, on cards whose blocks form clusters: kernels/token_text.cu, where a model's sizes fit it.

Where they do not, and on older cards, a graph of one token is replayed: see andrea.engine.cuda.generate.
"""

from collections.abc import Mapping

import numpy as np

from andrea.engine.cuda.blocks import WARP
from andrea.engine.cuda.device import Device
from andrea.engine.cuda.generate import Advance
from andrea.engine.cuda.parameters import Parameters
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.kernels import LAYERNORM_EPS
from andrea.engine.layout import MLP_RATIO
from andrea.experiment import Shape

CLUSTERS = (16, 8)  # blocks for a row of text; more than 8 where it was tried
TEXT_BLOCK, TEXT_WARPS = 512, 16
QUAD_BYTES = 64  # of a row of a matrix, for one warp
MAILBOXES = 10
STATIC_BYTES = 9 * 1024  # of shared memory, at most
CLUSTERS_SINCE = 90


def cluster(device: Device, shape: Shape, itemsize: int) -> int:
    """How many blocks k_text takes for a row of text; 0 where card or sizes do not allow it."""
    quad = QUAD_BYTES // itemsize
    columns = MLP_RATIO * shape.d_model // quad
    held = shared_bytes(shape) + STATIC_BYTES <= device.shared_limit and 3 * shape.d_head // quad <= TEXT_WARPS
    if device.arch < CLUSTERS_SINCE or not held or shape.d_head % quad or shape.d_model % WARP:
        return 0
    able = CLUSTERS if device.arch == CLUSTERS_SINCE else CLUSTERS[1:]
    # each block must have columns of the widest product, but no more than its warps can take
    return next((n for n in able if n <= columns <= n * TEXT_WARPS), 0)


def shared_bytes(shape: Shape) -> int:
    """Of struct Row in kernels/token_text.cu."""
    c, d = shape.d_model, shape.d_head
    vectors = 2 * (3 + MLP_RATIO) * c + c + -(-shape.vocab_size // 4) * 4
    return 4 * (2 * MAILBOXES + vectors + 3 * d + TEXT_WARPS * (d + 1) + 2 * shape.context + 1)


def text_kernel(
    device: Device, shape: Shape, precision: str, parameters: Parameters, buffers: Mapping[str, Tensor]
) -> Advance:
    """What goes on from place `place` by `steps` tokens in the first `rows` rows."""
    caches = [buffers[f"cache.{layer}"] for layer in range(shape.n_layers)]
    base = min(caches, key=lambda cache: cache.address)
    places = np.array([(cache.address - base.address) // 16 for cache in caches])
    device.write(buffers["cache_at"], places.astype(np.int32))
    blocks = cluster(device, shape, base.itemsize)
    kernel = device.kernel("token_text.cu", "k_text", precision, {"CLUSTER": blocks})
    device.allow_large_clusters(kernel)
    first, long = parameters.qkv(0).tensor, shape.context + 1
    stride = (parameters.qkv(1).tensor.address - first.address) // first.itemsize if shape.n_layers > 1 else 0
    pointers = (base, buffers["cache_at"], buffers["weights"], first, parameters.head())
    sizes = (stride, base.shape[0], long, shape.n_layers, shape.d_model, shape.n_heads, shape.d_head, shape.context)
    shared = shared_bytes(shape)
    texts = [buffers[name].part(0, base.shape[0], long) for name in ("text", "uniform")]

    def advance(place: int, steps: int, rows: int, beside: bool = False) -> None:
        numbers = (place, steps, *sizes, shape.vocab_size, LAYERNORM_EPS)
        kernel(
            (blocks * rows,), TEXT_BLOCK, *texts, buffers["sampling"], *pointers, *numbers, shared=shared, beside=beside
        )

    return advance
