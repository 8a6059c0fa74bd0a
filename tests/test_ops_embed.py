"""Embedding: a gather and its scatter-add."""

from typing import Any

import numpy as np
import pytest
from compare import normal
from op_cases import Arrays, Case, check_adding, check_differences, check_loops, check_repeat, check_torch

from andrea.engine.kernels import Kernels
from andrea.engine.reference import KERNELS as TWINS

SHAPES = [(1, 1, 1, 2), (2, 5, 3, 4), (3, 7, 33, 11)]  # B, T, C, V


def case(batch: int, length: int, width: int, vocabulary: int) -> Case:
    ids = np.random.default_rng(5).integers(0, vocabulary, (batch, length), dtype=np.int32)
    inputs = {"ids": ids, "wte": normal(1, vocabulary, width), "wpe": normal(2, length + 2, width)}
    return Case(inputs, forward, backward, ("wte", "wpe"), ("wte", "wpe"), ("x",))


def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
    x = np.empty((i["ids"].size, i["wte"].shape[1]), i["wte"].dtype)
    kernels.k_embed_fwd(x, i["ids"], i["wte"], i["wpe"])
    return {"x": x}


def backward(kernels: Kernels, i: Arrays, upstream: Arrays, d: dict[str, Any]) -> None:
    kernels.k_embed_bwd(d["wte"], d["wpe"], upstream["x"], i["ids"])


@pytest.mark.parametrize("shape", SHAPES)
def test_twin_against_differences(shape: tuple[int, ...]) -> None:
    """Guards tokens that come twice: plain fancy-index assignment would keep only one of their gradients."""
    check_differences(case(*shape))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 64, 128, 7)])
def test_loops_against_twin(shape: tuple[int, ...]) -> None:
    """Guards row offsets, and positions after T, which get no gradient."""
    check_loops(case(*shape))
    check_repeat(case(*shape))
    gradients = case(*shape).gradients(TWINS, "float64")
    assert not gradients["wpe"][shape[1] :].any()


def test_backward_adds() -> None:
    """Guards `+=`: wte also receives the tied head's gradient."""
    check_adding(case(3, 5, 19, 4))


def test_against_torch() -> None:
    """A third opinion in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    c = case(3, 5, 19, 4)
    leaves = {n: torch.tensor(c.inputs[n], requires_grad=True) for n in ("wte", "wpe")}
    x = leaves["wte"][torch.tensor(c.inputs["ids"]).long()] + leaves["wpe"][:5]
    x.reshape(15, 19).backward(torch.tensor(c.upstream()["x"]))
    check_torch(c.gradients(TWINS, "float64"), {n: leaf.grad for n, leaf in leaves.items()})
