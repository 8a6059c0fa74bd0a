"""Where the matrix ops read the weights, and how the optimizer keeps that place up to date.

In fp32 and tf32 it is the flat weights themselves. In bf16, fp16 and fp8 every matrix has a 16-bit working copy: the head
padded to P rows (the rest stays zero), and Q, K, V of a layer packed side by side, (C, 3C). Embeddings and LayerNorms
read the float32 weights and need no copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.engine.layout import Parameter, count, parameters
from andrea.errors import EngineError
from andrea.experiment import Shape

VOCAB_TILE = 128
CHUNK = 4096  # parameters of one block of k_adamw
QKV = ("W_Q", "W_K", "W_V")
LOW_PRECISION = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}


def padded_vocabulary(shape: Shape) -> int:
    """P: V rounded up to whole tensor-core tiles."""
    return -(-shape.vocab_size // VOCAB_TILE) * VOCAB_TILE


@dataclass(frozen=True)
class Copy:
    """Where element (i, j) of a parameter has its copy: offset + i * stride + j."""

    offset: int
    width: int
    stride: int


def head_name(shape: Shape) -> str:
    """The parameter that makes the logits."""
    return "wte" if shape.tied_head else "head"


def copies(shape: Shape) -> dict[str, Copy]:
    """The working copies by parameter: head, then layer by layer."""
    c, table = shape.d_model, {head_name(shape): Copy(0, shape.d_model, shape.d_model)}
    offset = padded_vocabulary(shape) * c
    for p in parameters(shape):
        if p.kind != "matrix":
            continue
        part = p.name.split(".")[1]
        if part in QKV:
            table[p.name] = Copy(offset + QKV.index(part) * c, c, 3 * c)
            offset += 3 * c * c if part == QKV[-1] else 0
        else:
            table[p.name] = Copy(offset, p.shape[1], p.shape[1])
            offset += p.size
    return table


def copied_elements(shape: Shape) -> int:
    """Size of the buffer of working copies."""
    matrices = sum(p.size for p in parameters(shape) if p.kind == "matrix")
    return padded_vocabulary(shape) * shape.d_model + matrices


def chunk_table(shape: Shape, low_precision: bool) -> NDArray[np.int32]:
    """(K, 7) int32, struct Chunk of kernels/optimizer.cu: at, count, decay, copy (-1: none), first, width, stride."""
    if count(shape) >= 2**31:
        fix = 'make the model smaller, or write "engine": "cpu"'
        raise EngineError("the CUDA engine counts parameters in 32 bits", got=f"{count(shape):,} of them", fix=fix)
    where = copies(shape) if low_precision else {}
    rows = [row for p in parameters(shape) for row in _chunks(p, where.get(p.name))]
    table = np.array(rows, np.int32)
    assert table[:, 1].sum() == count(shape), f"chunks cover {table[:, 1].sum()} of {count(shape)} parameters"
    return table


def _chunks(p: Parameter, copy: Copy | None) -> Iterator[tuple[int, ...]]:
    for first in range(0, p.size, CHUNK):
        place = (copy.offset, first, copy.width, copy.stride) if copy else (-1, first, 1, 1)
        yield (p.offset + first, min(CHUNK, p.size - first), int(p.decay), *place)
