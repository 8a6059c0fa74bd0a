"""Causal attention by tiles: lengths below, at and above a tile, one token, odd head widths."""

from typing import Any

import numpy as np
import pytest
from compare import assert_close, normal
from op_cases import Arrays, Case, check_differences, check_loops, check_repeat, check_torch

from andrea.engine.kernels import ATTENTION_TILE, Kernels, attention_work
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.reference import KERNELS as TWINS

SMALL = [(1, 1, 1, 1), (2, 1, 2, 3), (1, 7, 2, 3), (1, ATTENTION_TILE + 1, 1, 2)]  # B, T, H, D
LARGE = [
    (1, 1, 1, 1),
    (2, 13, 3, 5),
    (1, ATTENTION_TILE, 2, 8),
    (2, ATTENTION_TILE + 1, 2, 32),
    (1, 257, 1, 64),
    (1, 131, 2, 16),
    (1, 150, 1, 600),  # wider than any step of keys
]


def case(batch: int, length: int, heads: int, d: int) -> Case:
    inputs = {name: normal(seed, batch, length, heads * d) for seed, name in enumerate("qkv")}

    def forward(kernels: Kernels, i: Arrays) -> dict[str, Any]:
        out = np.full_like(i["q"], np.nan)
        lse = np.full((batch, heads, length), np.nan, out.dtype)
        kernels.k_attn_fwd(out, lse, i["q"], i["k"], i["v"], work(i["q"].dtype))
        return {"out": out, "lse": lse}

    def backward(kernels: Kernels, i: Arrays, upstream: Arrays, d: dict[str, Any]) -> None:
        saved = forward(kernels, i)
        given = (upstream["out"], saved["out"], saved["lse"], i["q"], i["k"], i["v"])
        kernels.k_attn_bwd(d["q"], d["k"], d["v"], *given, work(i["q"].dtype))

    def work(dtype: Any) -> Any:
        return np.full(attention_work(length, d), np.nan, dtype)  # what is read before it is written shows

    return Case(inputs, forward, backward, ("q", "k", "v"), (), ("out",))


@pytest.mark.parametrize("shape", SMALL)
def test_twin_against_differences(shape: tuple[int, ...]) -> None:
    """Guards the softmax derivative, the scale, and the seam between two tiles."""
    check_differences(case(*shape))


@pytest.mark.parametrize("shape", LARGE)
def test_loops_against_twin(shape: tuple[int, ...]) -> None:
    """Guards tile edges, key steps and workspace that is used before it is filled."""
    check_loops(case(*shape), factor=4)
    check_repeat(case(*shape))


@pytest.mark.parametrize("kernels", [TWINS, LOOPS], ids=["twin", "loops"])
def test_no_look_ahead(kernels: Kernels) -> None:
    """Guards the mask: a change of token t must not change any output before t."""
    c = case(1, 2 * ATTENTION_TILE + 3, 2, 4)
    before = c.forward(kernels, c.cast("float32"))["out"]
    for t in (1, ATTENTION_TILE - 1, ATTENTION_TILE, 2 * ATTENTION_TILE + 2):
        changed = dict(c.cast("float32"))
        for name in "qkv":
            changed[name][0, t] += 1
        after = c.forward(kernels, changed)["out"]
        assert np.array_equal(before[0, :t], after[0, :t])
        assert not np.array_equal(before[0, t], after[0, t])


def test_large_scores() -> None:
    """Guards the subtraction of the largest score: exp(800) is infinite."""
    c = case(1, 40, 1, 4)
    scaled = {n: a * (30 if n in "qk" else 1) for n, a in c.cast("float32").items()}
    exact = c.forward(TWINS, {n: a.astype(np.float64) for n, a in scaled.items()})
    for kernels in (TWINS, LOOPS):
        assert_close(c.forward(kernels, scaled)["out"], exact["out"], atol=1e-3, rtol=1e-3, what="out")


def test_assigns() -> None:
    """Guards the contract: dq, dk, dv are assigned, so what was in them does not matter."""
    c = case(1, 37, 2, 4)
    for kernels in (TWINS, LOOPS):
        once, twice = c.gradients(kernels, "float32"), c.gradients(kernels, "float32", times=2)
        for name in "qkv":
            assert np.array_equal(once[name], twice[name])


def test_against_torch() -> None:
    """A third opinion in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    c = case(2, 39, 3, 5)
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in c.inputs.items()}
    q, k, v = (leaf.view(2, 39, 3, 5).transpose(1, 2) for leaf in leaves.values())
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.transpose(1, 2).reshape(2, 39, 15).backward(torch.tensor(c.upstream()["out"]))
    check_torch(c.gradients(TWINS, "float64"), {n: leaf.grad for n, leaf in leaves.items()})
