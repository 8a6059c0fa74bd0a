"""The buffers of the CPU engine.

A microbatch is cut into partitions of whole rows; each partition has its own gradients and works through its rows
in groups, so that the activations of one group are all that is held.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from andrea.engine.kernels import NORM_CHUNK, attention_work
from andrea.engine.layout import MLP_RATIO, count
from andrea.engine.plan import Buffer
from andrea.experiment import Shape

GROUP_TOKENS = 512  # a group has as many rows as fit into this, at least one


@dataclass(frozen=True)
class Cut:
    """How the rows of a microbatch are shared out; fixed by the experiment, never by the thread count."""

    partitions: int
    group: int  # rows at a time
    spans: tuple[tuple[int, int], ...]  # rows of each partition


def cut_rows(rows: int, partitions: int, context: int) -> Cut:
    """Contiguous, nearly equal spans of rows; no more partitions than rows."""
    partitions = min(partitions, rows)
    bounds = [rows * i // partitions for i in range(partitions + 1)]
    spans = tuple(pairwise(bounds))
    largest = max(stop - start for start, stop in spans)
    return Cut(partitions, min(largest, max(1, GROUP_TOKENS // context)), spans)


def cpu_buffers(shape: Shape, rows: int, partitions: int, dtype: str = "float32") -> Iterator[Buffer]:
    """All buffers for microbatches of `rows` rows."""
    n = count(shape)
    cut = cut_rows(rows, partitions, shape.context)
    for name in ("weights", "m", "v"):
        yield Buffer(name, name, (n,), dtype)
    yield Buffer("workspace", "partials", (-(-n // NORM_CHUNK),), "float64")
    for p in range(cut.partitions):
        yield Buffer("gradients", f"{p}.grad", (n,), dtype)
    for p in range(cut.partitions):
        yield from _partition_buffers(f"{p}.", shape, cut.group, dtype)
    yield from generation_buffers(shape, dtype)


def _partition_buffers(prefix: str, shape: Shape, group: int, dtype: str) -> Iterator[Buffer]:
    t, c, v, layers = shape.context, shape.d_model, shape.vocab_size, shape.n_layers
    n, hidden = group * t, MLP_RATIO * c
    yield Buffer("batches", prefix + "ids", (n,), "int32")
    yield Buffer("batches", prefix + "targets", (n,), "int32")
    for i in range(2 * layers + 1):  # the residual stream, and the LayerNorm that reads it
        yield Buffer("activations", f"{prefix}x.{i}", (n, c), dtype)
        yield Buffer("activations", f"{prefix}y.{i}", (n, c), dtype)
        yield Buffer("activations", f"{prefix}mean.{i}", (n,), dtype)
        yield Buffer("activations", f"{prefix}rstd.{i}", (n,), dtype)
    for layer in range(layers):
        for name in ("q", "k", "v", "att"):
            yield Buffer("activations", f"{prefix}{name}.{layer}", (n, c), dtype)
        yield Buffer("activations", f"{prefix}lse.{layer}", (group, shape.n_heads, t), dtype)
        yield Buffer("activations", f"{prefix}h.{layer}", (n, hidden), dtype)
    yield Buffer("activations", prefix + "losses", (n,), dtype)
    yield Buffer("activations", prefix + "total", (n,), dtype)
    yield Buffer("activations", prefix + "logits", (n, v), dtype)
    for name in ("branch", "dstream", "dbranch", "datt", "dq", "dk", "dv"):
        yield Buffer("workspace", prefix + name, (n, c), dtype)
    yield Buffer("workspace", prefix + "attention", (attention_work(t, shape.d_head),), dtype)
    for name in ("a", "dh"):
        yield Buffer("workspace", prefix + name, (n, hidden), dtype)


def generation_buffers(shape: Shape, dtype: str) -> Iterator[Buffer]:
    """The cache of keys and values, and the activations of one token."""
    c = shape.d_model
    for name in ("cache.k", "cache.v"):
        yield Buffer("generation", name, (shape.n_layers, shape.context, c), dtype)
    yield Buffer("generation", "token.id", (1,), "int32")
    for name in ("x", "y", "q", "att", "branch"):
        yield Buffer("generation", f"token.{name}", (1, c), dtype)
    for name in ("h", "a"):
        yield Buffer("generation", f"token.{name}", (1, MLP_RATIO * c), dtype)
    for name in ("mean", "rstd"):
        yield Buffer("generation", f"token.{name}", (1,), dtype)
    yield Buffer("generation", "token.logits", (1, shape.vocab_size), dtype)
