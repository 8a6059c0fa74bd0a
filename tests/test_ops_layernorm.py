"""LayerNorm: formulas, the compiled loop, the adding contract. Gamma is never 1 and beta never 0."""

from typing import Any

import numpy as np
import pytest
from compare import normal
from op_cases import Arrays, Case, check_adding, check_differences, check_loops, check_repeat, check_torch

from andrea.engine.kernels import Kernels
from andrea.engine.reference import KERNELS as TWINS

SMALL = [(1, 1), (1, 7), (5, 13), (3, 2)]
LARGE = [(1, 1), (67, 131), (33, 64), (128, 384), (5, 65), (9, 16)]


def case(rows: int, width: int, centre: float = 0.0) -> Case:
    inputs = {
        "x": normal(1, rows, width, centre=centre),
        "gamma": normal(2, width, centre=1.5),
        "beta": normal(3, width, centre=0.5),
    }
    return Case(inputs, forward, backward, ("x", "gamma", "beta"), ("x", "gamma", "beta"), ("y",))


def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
    x = i["x"]
    out = {"y": np.empty_like(x), "mean": np.empty(len(x), x.dtype), "rstd": np.empty(len(x), x.dtype)}
    kernels.k_layernorm_fwd(out["y"], out["mean"], out["rstd"], x, i["gamma"], i["beta"])
    return out


def backward(kernels: Kernels, i: Arrays, upstream: Arrays, d: dict[str, Any]) -> None:
    out = forward(kernels, i)
    kernels.k_layernorm_bwd(d["x"], d["gamma"], d["beta"], upstream["y"], i["x"], i["gamma"], out["mean"], out["rstd"])


@pytest.mark.parametrize(("rows", "width"), SMALL)
def test_twin_against_differences(rows: int, width: int) -> None:
    """Guards the derivative: a missing gamma, a mean over the wrong axis."""
    check_differences(case(rows, width))


@pytest.mark.parametrize(("rows", "width"), LARGE)
def test_loops_against_twin(rows: int, width: int) -> None:
    """Guards vector tails: widths below, at and above a multiple of the lanes."""
    if width > 1:
        check_loops(case(rows, width))
    else:  # one element is its own mean: y is beta, and no gradient flows
        out = forward(TWINS, case(rows, width).inputs)
        assert np.array_equal(out["y"][:, 0], np.full(rows, case(rows, width).inputs["beta"][0]))
    check_repeat(case(rows, width))


def test_variance_far_from_zero() -> None:
    """Guards the two-pass variance: mean(x^2) - mean(x)^2 loses every digit when the mean is 1,000 times the spread."""
    check_loops(case(16, 96, centre=1000.0))


def test_backward_adds() -> None:
    """Guards `+=`: dx too, for it is the residual stream's gradient."""
    check_adding(case(17, 33))


def test_against_torch() -> None:
    """A third opinion in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    c = case(11, 37)
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in c.inputs.items()}
    y = torch.nn.functional.layer_norm(leaves["x"], (37,), leaves["gamma"], leaves["beta"], eps=1e-5)
    y.backward(torch.tensor(c.upstream()["y"]))
    check_torch(c.gradients(TWINS, "float64"), {n: leaf.grad for n, leaf in leaves.items()})
