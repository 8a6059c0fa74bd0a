"""Head and cross-entropy, which work in one (N, V) buffer."""

from typing import Any

import numpy as np
import pytest
from compare import assert_close, normal
from op_cases import Arrays, Case, check_adding, check_differences, check_loops, check_repeat, check_torch

from andrea.engine.kernels import Kernels
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.reference import KERNELS as TWINS

SMALL = [(1, 1, 1), (3, 2, 5), (7, 3, 2)]  # N, C, V
LARGE = [(1, 1, 1), (50, 33, 257), (49, 16, 81), (3, 8, 700)]


def case(rows: int, width: int, vocabulary: int) -> Case:
    """The upstream gradient of every row is the same number, so it goes in as `scale`."""
    targets = np.random.default_rng(7).integers(0, vocabulary, rows, dtype=np.int32)
    inputs = {"x": normal(1, rows, width), "head": normal(2, vocabulary, width), "targets": targets}
    return Case(inputs, forward, backward, ("x", "head"), ("head",), ("mean",))


def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
    x, head = i["x"], i["head"]
    losses, total = np.empty(len(x), x.dtype), np.empty(len(x), x.dtype)
    kernels.k_loss_fwd(losses, total, np.empty((len(x), len(head)), x.dtype), x, head, i["targets"])
    return {"losses": losses, "mean": losses.mean(keepdims=True)}


def backward(kernels: Kernels, i: Arrays, upstream: Arrays, d: dict[str, Any]) -> None:
    x, head = i["x"], i["head"]
    losses, total, logits = np.empty(len(x), x.dtype), np.empty(len(x), x.dtype), np.empty((len(x), len(head)), x.dtype)
    kernels.k_loss_fwd(losses, total, logits, x, head, i["targets"])
    scale = float(upstream["mean"][0]) / len(x)
    kernels.k_loss_bwd(d["x"], d["head"], logits, total, x, head, i["targets"], scale)


@pytest.mark.parametrize("shape", SMALL)
def test_twin_against_differences(shape: tuple[int, ...]) -> None:
    """Guards softmax minus one-hot, and the scale."""
    check_differences(case(*shape))


@pytest.mark.parametrize("shape", LARGE)
def test_loops_against_twin(shape: tuple[int, ...]) -> None:
    """Guards a vocabulary that is not a multiple of anything."""
    if shape[2] > 1:
        check_loops(case(*shape), factor=3)
    else:  # one token is certain
        assert forward(LOOPS, case(*shape).cast("float32"))["losses"] == 0
    check_repeat(case(*shape))


def test_backward_adds() -> None:
    """Guards `+=` into the head, which is wte when it is tied."""
    check_adding(case(50, 13, 31))


@pytest.mark.parametrize("kernels", [TWINS, LOOPS], ids=["twin", "loops"])
def test_extreme_logits(kernels: Kernels) -> None:
    """Guards the subtraction of the largest logit, on both sides: certain is 0 nats, impossible is the distance."""
    x = np.array([[1.0], [1.0]], np.float32)
    head = np.array([[0.0], [500.0]], np.float32)
    losses, total, logits = np.empty(2, np.float32), np.empty(2, np.float32), np.empty((2, 2), np.float32)
    kernels.k_loss_fwd(losses, total, logits, x, head, np.array([1, 0], np.int32))
    assert_close(losses, [0, 500], atol=1e-6, rtol=1e-6, what="losses")


@pytest.mark.parametrize("kernels", [TWINS, LOOPS], ids=["twin", "loops"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_shows(kernels: Kernels, bad: float) -> None:
    """Guards the freeze: a NaN or an overflow must reach the loss, not be hidden by the row maximum."""
    x = normal(1, 3, 4, dtype="float32")
    x[1, 2] = bad
    head = np.abs(normal(2, 90, 4, dtype="float32"))
    losses, total, logits = np.empty(3, np.float32), np.empty(3, np.float32), np.empty((3, 90), np.float32)
    with np.errstate(invalid="ignore"):
        kernels.k_loss_fwd(losses, total, logits, x, head, np.zeros(3, np.int32))
    assert np.isfinite(losses).tolist() == [True, False, True]


def test_against_torch() -> None:
    """A third opinion in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    c = case(13, 5, 29)
    leaves = {n: torch.tensor(c.inputs[n], requires_grad=True) for n in ("x", "head")}
    targets = torch.tensor(c.inputs["targets"]).long()
    loss = torch.nn.functional.cross_entropy(leaves["x"] @ leaves["head"].T, targets)
    (loss * float(c.upstream()["mean"][0])).backward()
    check_torch(c.gradients(TWINS, "float64"), {n: leaf.grad for n, leaf in leaves.items()})
