"""Our parameters under the names, and in the shapes, of GPT-2 in the transformers library.

Its linear layers on matrices are (in, out), as ours are, and have biases; Q, K and V are one matrix, side by side. A tied
head is not written: the config says that it is the token embedding. Padding of the vocabulary exists on a card only.
"""

from collections.abc import Iterator

import numpy as np

from andrea.engine.kernels import Array
from andrea.engine.layout import views
from andrea.talk.model import Model

_MATRICES = {"W_O": "attn.c_proj", "W_1": "mlp.c_fc", "W_2": "mlp.c_proj"}
_NORMS = {"LN1": "ln_1", "LN2": "ln_2"}


def tensors(model: Model) -> dict[str, Array]:
    """Name -> float32 array, in file order."""
    ours, shape = views(model.weights, model.shape), model.shape
    named = {"transformer.wte.weight": ours["wte"], "transformer.wpe.weight": ours["wpe"]}
    for layer in range(shape.n_layers):
        named |= {f"transformer.h.{layer}.{name}": array for name, array in _block(ours, layer)}
    named |= dict(_norm(ours, "LN_f", "transformer.ln_f"))
    return named if shape.tied_head else named | {"lm_head.weight": ours["head"]}


def _block(ours: dict[str, Array], layer: int) -> Iterator[tuple[str, Array]]:
    qkv = np.concatenate([ours[f"{layer}.{name}"] for name in ("W_Q", "W_K", "W_V")], axis=1)
    matrices = {"attn.c_attn": qkv} | {theirs: ours[f"{layer}.{name}"] for name, theirs in _MATRICES.items()}
    for name, matrix in matrices.items():
        yield f"{name}.weight", matrix
        yield f"{name}.bias", np.zeros(matrix.shape[1], np.float32)
    for name, theirs in _NORMS.items():
        yield from _norm(ours, f"{layer}.{name}", theirs)


def _norm(ours: dict[str, Array], name: str, theirs: str) -> Iterator[tuple[str, Array]]:
    yield f"{theirs}.weight", ours[f"{name}.gamma"]
    yield f"{theirs}.bias", ours[f"{name}.beta"]
