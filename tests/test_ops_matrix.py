"""QKV, attention out, MLP and the residual sum. Sizes lie around the blocks that products are cut into."""

from typing import Any

import numpy as np
import pytest
from compare import assert_close, normal
from op_cases import Arrays, Case, check_adding, check_differences, check_loops, check_repeat, check_torch

from andrea.engine.kernels import Kernels
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.loops.products import DEPTH, ROWS, SHORT, SLACK, WIDTH
from andrea.engine.reference import KERNELS as TWINS

SMALL = [(1, 1), (3, 2), (5, 3)]  # N, C
LARGE = [
    (1, 1),
    (ROWS - 1, 7),  # not cut
    (ROWS + 1, WIDTH + SLACK),  # one block wide
    (2 * ROWS, WIDTH + SLACK + 1),  # a full block and a small one
    (DEPTH + SLACK + 1, 37),  # a weight's gradient sums over rows
]


def qkv_case(rows: int, width: int) -> Case:
    inputs = {"x": normal(1, rows, width)} | {n: normal(s, width, width) for s, n in enumerate(("wq", "wk", "wv"), 2)}
    weights = ("wq", "wk", "wv")

    def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
        out = {n: np.full_like(i["x"], np.nan) for n in "qkv"}
        kernels.k_attn_qkv_fwd(*out.values(), i["x"], *(i[w] for w in weights))
        return out

    def backward(kernels: Kernels, i: Arrays, up: Arrays, d: dict[str, Any]) -> None:
        kernels.k_attn_qkv_bwd(
            d["x"], *(d[w] for w in weights), up["q"], up["k"], up["v"], i["x"], *(i[w] for w in weights)
        )

    return Case(inputs, forward, backward, ("x", *weights), weights, ("q", "k", "v"))


def out_case(rows: int, width: int) -> Case:
    def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
        y = np.full_like(i["x"], np.nan)
        kernels.k_attn_out_fwd(y, i["x"], i["w"])
        return {"y": y}

    def backward(kernels: Kernels, i: Arrays, up: Arrays, d: dict[str, Any]) -> None:
        kernels.k_attn_out_bwd(d["x"], d["w"], up["y"], i["x"], i["w"])

    inputs = {"x": normal(1, rows, width), "w": normal(2, width, width)}
    return Case(inputs, forward, backward, ("x", "w"), ("w",), ("y",))


def mlp_case(rows: int, width: int) -> Case:
    def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
        y, h = np.full_like(i["x"], np.nan), np.full((rows, 4 * width), np.nan, i["x"].dtype)
        kernels.k_mlp_fwd(y, h, np.full_like(h, np.nan), i["x"], i["w1"], i["w2"])
        return {"y": y, "h": h}

    def backward(kernels: Kernels, i: Arrays, up: Arrays, d: dict[str, Any]) -> None:
        h = forward(kernels, i)["h"]
        spare = (np.full_like(h, np.nan), np.full_like(h, np.nan))
        kernels.k_mlp_bwd(d["x"], d["w1"], d["w2"], *spare, up["y"], h, i["x"], i["w1"], i["w2"])

    inputs = {"x": normal(1, rows, width), "w1": normal(2, width, 4 * width), "w2": normal(3, 4 * width, width)}
    return Case(inputs, forward, backward, ("x", "w1", "w2"), ("w1", "w2"), ("y",))


CASES = {"qkv": qkv_case, "out": out_case, "mlp": mlp_case}
each_op = pytest.mark.parametrize("op", CASES)


@each_op
@pytest.mark.parametrize("shape", SMALL)
def test_twin_against_differences(op: str, shape: tuple[int, int]) -> None:
    """Guards transposes, and the derivative of GELU in its tanh form."""
    check_differences(CASES[op](*shape))


@each_op
@pytest.mark.parametrize("shape", LARGE)
def test_loops_against_twin(op: str, shape: tuple[int, int]) -> None:
    """Guards the cut into blocks: remainders of rows, of columns and of what is summed over."""
    check_loops(CASES[op](*shape), factor=3)
    check_repeat(CASES[op](*shape))


@pytest.mark.parametrize("width", [SHORT // 4, SHORT // 4 + 1])
def test_loops_with_long_rows(width: int) -> None:
    """Guards the product that is not cut, on both sides of the limit."""
    check_loops(mlp_case(ROWS + 3, width), factor=3)


@each_op
def test_backward_adds(op: str) -> None:
    """Guards `+=` into weights and `=` into dx."""
    check_adding(CASES[op](ROWS + 5, 21))


def test_gelu_far_out() -> None:
    """Guards the exponential's ends: gelu(x) is x on the right and 0 on the left, with slopes 1 and 0."""
    far = np.array([[-1e4, -60.0, -20.0, 0.0, 20.0, 60.0, 1e4]], np.float32)
    case = {"x": far, "w1": np.eye(7, 28, dtype=np.float32), "w2": np.eye(28, 7, dtype=np.float32)}
    up, y, h = np.ones_like(far), np.empty_like(far), np.empty((1, 28), np.float32)
    for kernels in (TWINS, LOOPS):
        d = {n: np.zeros_like(a) for n, a in case.items()}
        kernels.k_mlp_fwd(y, h, np.empty_like(h), case["x"], case["w1"], case["w2"])
        kernels.k_mlp_bwd(d["x"], d["w1"], d["w2"], np.empty_like(h), np.empty_like(h), up, h, *case.values())
        assert_close(y, np.maximum(far, 0), atol=1e-30, rtol=1e-6, what="gelu")
        assert_close(d["x"], [[0, 0, 0, 0.5, 1, 1, 1]], atol=1e-6, rtol=1e-6, what="slope")


@pytest.mark.parametrize("kernels", [TWINS, LOOPS], ids=["twin", "loops"])
def test_residual(kernels: Kernels) -> None:
    """Guards aliasing: the sum may go into its first term, and the gradient may be handed on in place."""
    a, b = normal(1, 5, 7, dtype="float32"), normal(2, 5, 7, dtype="float32")
    want = a + b
    out = np.empty_like(a)
    kernels.k_residual_add(out, a, b)
    kernels.k_residual_add(a, a, b)
    assert np.array_equal(out, want)
    assert np.array_equal(a, want)
    da, db = np.full_like(out, np.nan), np.full_like(out, np.nan)
    kernels.k_residual_add_bwd(da, db, out)
    assert np.array_equal(da, want)
    assert np.array_equal(db, want)
    kernels.k_residual_add_bwd(out, out, out)
    assert np.array_equal(out, want)


def test_mlp_against_torch() -> None:
    """A third opinion in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    c = mlp_case(9, 11)
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in c.inputs.items()}
    y = torch.nn.functional.gelu(leaves["x"] @ leaves["w1"], approximate="tanh") @ leaves["w2"]
    y.backward(torch.tensor(c.upstream()["y"]))
    check_torch(c.gradients(TWINS, "float64"), {n: leaf.grad for n, leaf in leaves.items()})
