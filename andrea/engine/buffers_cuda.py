"""What a CUDA engine holds on the device, planned without one, so that an experiment can be checked anywhere.

Master weights, gradients, m and v are float32. In bf16 and fp16 the matrices have a 16-bit working copy, and
activations and logits are 16-bit. Nothing but GELU is recomputed. V is padded to whole tensor-core tiles.
"""

from collections.abc import Iterator

from andrea.engine.kernels import NORM_CHUNK
from andrea.engine.layout import MLP_RATIO, count
from andrea.engine.plan import MIB, Buffer
from andrea.experiment import Shape

VOCAB_TILE = 128
WORKSPACE = 32 * MIB  # what the matrix library is given; it must not allocate by itself
WINDOW_STEPS = 64  # losses, norms and rates of one window stay on the device
LOW_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}


def cuda_buffers(shape: Shape, rows: int, precision: str) -> Iterator[Buffer]:
    """All device buffers for microbatches of `rows` rows."""
    work = LOW_PRECISION.get(precision, "float32")
    n_params, padded = count(shape), -(-shape.vocab_size // VOCAB_TILE) * VOCAB_TILE
    for name in ("weights", "gradients", "m", "v"):
        yield Buffer(name, name, (n_params,))
    # in strict fp32 and tf32 only the head needs a copy, for the padding
    copied = n_params - shape.vocab_size * shape.d_model if work != "float32" else 0
    yield Buffer("working copies", "copy.head", (padded, shape.d_model), work)
    yield Buffer("working copies", "copy.rest", (copied,), work)
    yield Buffer("workspace", "dhead", (padded, shape.d_model))
    yield from _activations(shape, rows, padded, work)
    yield from _streams(shape, rows, work)
    yield Buffer("workspace", "partials", (-(-n_params // NORM_CHUNK),))
    yield Buffer("workspace", "matrix library", (WORKSPACE,), "uint8")
    yield Buffer("batches", "ids", (2, rows, shape.context + 1), "int32")  # the next batch arrives during a step
    yield Buffer("batches", "scalars", (3, WINDOW_STEPS))


def _activations(shape: Shape, rows: int, padded: int, work: str) -> Iterator[Buffer]:
    n, c = rows * shape.context, shape.d_model
    for i in range(2 * shape.n_layers + 1):
        yield Buffer("activations", f"x.{i}", (n, c), work)
        yield Buffer("activations", f"y.{i}", (n, c), work)
        yield Buffer("activations", f"mean.{i}", (n,))
        yield Buffer("activations", f"rstd.{i}", (n,))
    for layer in range(shape.n_layers):
        yield Buffer("activations", f"qkv.{layer}", (n, 3 * c), work)
        yield Buffer("activations", f"att.{layer}", (n, c), work)
        yield Buffer("activations", f"lse.{layer}", (rows, shape.n_heads, shape.context))
        yield Buffer("activations", f"h.{layer}", (n, MLP_RATIO * c), work)
    yield Buffer("activations", "losses", (n,))
    yield Buffer("activations", "lse", (n,))
    yield Buffer("activations", "logits", (n, padded), work)


def _streams(shape: Shape, rows: int, work: str) -> Iterator[Buffer]:
    n, c = rows * shape.context, shape.d_model
    for name in ("branch", "dstream", "dbranch", "datt"):
        yield Buffer("workspace", name, (n, c), work)
    yield Buffer("workspace", "dqkv", (n, 3 * c), work)
    yield Buffer("workspace", "dq sums", (n, c))  # attention's backward adds dq in float32
    for name in ("a", "dh"):
        yield Buffer("workspace", name, (n, MLP_RATIO * c), work)
