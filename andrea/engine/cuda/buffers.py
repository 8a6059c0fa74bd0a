"""What a CUDA engine holds on the card, planned without one, so that an experiment can be checked anywhere.

Weights, gradients, m and v are float32. In bf16 and fp16 the matrices have a 16-bit working copy, and activations, their
gradients and the logits are 16-bit. GELU's output is made again in backward, and with train.recompute more. In 16 bits the
weight gradients run beside the rest, so what they read must last longer: two wide buffers and two for the stream's gradient.
In float32 every product fills the card, and one of each is enough. Sampling lives in the activations' memory: its keys
and values where a layer's q, k and v lie, or with train.recompute, where all layers share those, in the layer's output.
"""

from collections.abc import Iterator
from dataclasses import replace

from andrea.engine.cuda.attention import scratch
from andrea.engine.cuda.fp8 import fp8_buffers
from andrea.engine.cuda.mlp_fused import MAPS, has_maps
from andrea.engine.cuda.tensor_map import WORDS
from andrea.engine.cuda.weights import LOW_PRECISION, chunk_table, copied_elements, padded_vocabulary
from andrea.engine.layout import MLP_RATIO, count
from andrea.engine.plan import MIB, Buffer
from andrea.engine.recompute import shared
from andrea.experiment import Shape

WORKSPACE = 32 * MIB  # what cuBLASLt is given for each stream; it must not allocate by itself
WINDOW_STEPS = 64  # losses and norms of so many steps stay on the card
NORM_CHUNK = 8192  # as in kernels/optimizer.cu
SLABS = 256  # blocks of a LayerNorm's backward, each with a partial sum of the parameter gradients
CONTROL_WORDS = 9  # struct Control of kernels/control.cuh
PROMPT_ROWS = 4  # prompts that are continued at a time


def overlaps(work: str) -> bool:
    """Whether weight gradients run beside the rest of backward, for activations of type `work`."""
    return work != "float32"


def cuda_buffers(
    shape: Shape, rows: int, precision: str, microbatches: int = 1, *, recompute: bool = False
) -> Iterator[Buffer]:
    """All device buffers for `microbatches` of `rows` rows."""
    work, n_params = LOW_PRECISION.get(precision, "float32"), count(shape)
    for name in ("weights", "m", "v"):
        yield Buffer(name, name, (n_params,))
    # an untied head stands last, and its gradient is made in padded rows
    behind = 0 if shape.tied_head else (padded_vocabulary(shape) - shape.vocab_size) * shape.d_model
    yield Buffer("gradients", "gradients", (n_params + behind,))
    low = work != "float32"
    yield Buffer("working copies", "copy", (copied_elements(shape) if low else 8,), work)
    yield Buffer("workspace", "chunks", chunk_table(shape, low).shape, "int32")
    places = shared(shape.n_layers, doubled=overlaps(work)) if recompute else {}
    for buffer in _activations(shape, rows, work):
        yield replace(buffer, inside=places.get(buffer.name, ""))
    yield from _cache(shape, rows, work, recompute)
    yield from _workspace(shape, rows, work)
    if precision == "fp8":
        yield from fp8_buffers(shape, rows)
    yield Buffer("workspace", "norm_partial", (-(-n_params // NORM_CHUNK),))
    if has_maps(precision, shape.d_model):
        yield Buffer("workspace", "mlp_maps", (2 * shape.n_layers, MAPS, WORDS), "int32")
    yield Buffer("workspace", "library", (2 if overlaps(work) else 1, WORKSPACE), "uint8")
    yield from _batch(shape, rows, microbatches)


def _activations(shape: Shape, rows: int, work: str) -> Iterator[Buffer]:
    n, c, part = rows * shape.context, shape.d_model, "activations"
    for i in range(2 * shape.n_layers + 1):  # the residual stream, and the LayerNorm that reads it
        yield Buffer(part, f"x.{i}", (n, c), work)
        yield Buffer(part, f"y.{i}", (n, c), work)
        yield Buffer(part, f"mean.{i}", (n,))
        yield Buffer(part, f"rstd.{i}", (n,))
    for layer in range(shape.n_layers):
        yield Buffer(part, f"qkv.{layer}", (n, 3 * c), work)
        yield Buffer(part, f"att.{layer}", (n, c), work)
        yield Buffer(part, f"lse.{layer}", (rows, shape.n_heads, shape.context))
        yield Buffer(part, f"h.{layer}", (n, MLP_RATIO * c), work)
    yield Buffer(part, "losses", (n,))
    yield Buffer(part, "loss_lse", (n,))
    yield Buffer(part, "logits", (n, padded_vocabulary(shape)), work)


def _cache(shape: Shape, rows: int, work: str, recompute: bool) -> Iterator[Buffer]:
    """Keys and values of the rows that are sampled at a time, by layer.

    Where they fit, they lie in the gradients, which each step begins anew: then evaluation does not touch them.
    """
    whole = Buffer("activations", "cache", (shape.n_layers, PROMPT_ROWS, 2, shape.context, shape.d_model), work)
    if whole.nbytes <= 4 * count(shape):
        yield replace(whole, inside="gradients")
        return
    sampled = max(1, min(PROMPT_ROWS, rows // 2 if recompute else rows * 3 // 2))
    size = (sampled, 2, shape.context, shape.d_model)
    for layer in range(shape.n_layers):
        place = f"x.{2 * layer + 2}" if recompute else f"qkv.{layer}"
        fits = rows > 1 or not recompute  # the output of a single row holds half of what a row's cache needs
        yield Buffer("activations", f"cache.{layer}", size, work, inside=place if fits else "")


def _workspace(shape: Shape, rows: int, work: str) -> Iterator[Buffer]:
    n, c, part = rows * shape.context, shape.d_model, "workspace"
    yield Buffer(part, "a", (n, MLP_RATIO * c), work)
    yield Buffer(part, "wide", (n, 4 * c), work)
    yield Buffer(part, "dstream", (n, c), work)
    if overlaps(work):
        yield Buffer(part, "attention_wide", (n, 4 * c), work)
        yield Buffer(part, "dstream_2", (n, c), work)
    yield Buffer(part, "dbranch", (n, c), work)
    yield Buffer(part, "ln_partial", (2 * shape.n_layers + 1, SLABS, 2, c))
    yield Buffer(part, "ln_where", (2 * shape.n_layers + 1,), "int32")
    for name, size in scratch(rows, shape.context, shape.n_heads, shape.d_head).items():
        yield Buffer(part, name, (size // 4,))


def batch_words(shape: Shape, rows: int, microbatches: int) -> int:
    """int32 words of one step's batch as the host sends it: see andrea.engine.cuda.feed."""
    n = rows * shape.context
    return 4 + microbatches * (rows * (shape.context + 1) + n + shape.vocab_size + 1)


def _batch(shape: Shape, rows: int, microbatches: int) -> Iterator[Buffer]:
    part, long = "batches", shape.context + 1
    yield Buffer(part, "batch", (batch_words(shape, rows, microbatches),), "int32")
    yield Buffer(part, "control", (CONTROL_WORDS,), "int32")
    yield Buffer(part, "window_losses", (WINDOW_STEPS,))
    yield Buffer(part, "window_norms", (WINDOW_STEPS,))
    yield Buffer(part, "sums", (rows,))
    yield Buffer(part, "sampling", (4,), "int32")
    yield Buffer(part, "text", (PROMPT_ROWS, long), "int32")
    yield Buffer(part, "uniform", (PROMPT_ROWS, long))
    yield Buffer(part, "cache_at", (shape.n_layers,), "int32")
