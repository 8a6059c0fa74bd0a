"""The whole model: gradient against central differences and PyTorch, order of ops, accumulation."""

from typing import Any

import numpy as np
import pytest
from compare import assert_close, assert_gradient
from engine_cases import SHAPE, UNTIED, batches, engine, start_weights

from andrea.engine.layout import count, views
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.program import Program
from andrea.engine.reference import KERNELS as TWINS
from andrea.experiment import Shape


@pytest.mark.parametrize("shape", [SHAPE, UNTIED], ids=["tied", "untied"])
def test_gradient_against_differences(shape: Shape) -> None:
    """Guards the wiring: every parameter's gradient, on a sample of each tensor, in float64."""
    made, batch = engine(shape, kernels=TWINS, dtype="float64"), batches(1)[0]
    _, gradient = made.gradient(batch)
    rng, step = np.random.default_rng(1), 1e-5
    for name, view in views(made._weights, shape).items():
        got, flat = views(gradient, shape)[name].reshape(-1), view.reshape(-1)
        chosen = rng.choice(flat.size, min(6, flat.size), replace=False)
        want = np.zeros(len(chosen))
        for j, i in enumerate(chosen):
            before = flat[i]
            flat[i] = before + step
            above, _ = made.gradient(batch)
            flat[i] = before - step
            below, _ = made.gradient(batch)
            flat[i] = before
            want[j] = (above - below) / (2 * step)
        assert_gradient(got[chosen], want, what=name, relative=2e-6)


@pytest.mark.parametrize("shape", [SHAPE, UNTIED], ids=["tied", "untied"])
def test_loops_against_twins(shape: Shape) -> None:
    """Guards the compiled engine as a whole: loss and gradient near the float64 twin."""
    exact = engine(shape, kernels=TWINS, dtype="float64").gradient(batches(1)[0])
    low = engine(shape, kernels=TWINS).gradient(batches(1)[0])
    got = engine(shape, kernels=LOOPS).gradient(batches(1)[0])
    assert got[0] == pytest.approx(exact[0], rel=1e-6)
    for name in views(exact[1], shape):
        e, lo, g = (views(x[1], shape)[name] for x in (exact, low, got))
        error = np.abs(lo - e).max() + 1e-6 * np.abs(e).max()
        assert_close(g, e, atol=4 * error, rtol=0, what=name)


@pytest.mark.parametrize(("microbatches", "partitions"), [(1, 2), (2, 1), (2, 2), (4, 1), (1, 3), (1, 9)])
def test_cuts_agree(microbatches: int, partitions: int) -> None:
    """Guards the scales: n microbatches of B/n rows, in any partitions, are one batch of B rows."""
    batch = batches(1)[0]
    whole = engine(kernels=TWINS, dtype="float64", partitions=1)
    cut = engine(kernels=TWINS, dtype="float64", microbatches=microbatches, partitions=partitions)
    loss, gradient = whole.gradient(batch)
    loss2, gradient2 = cut.gradient(batch)
    assert loss2 == pytest.approx(loss, rel=1e-12)
    assert_close(gradient2, gradient, atol=1e-12 * np.abs(gradient).max(), rtol=0, what="gradient")


def test_backward_is_the_list_in_reverse() -> None:
    """Guards the pairing: each op's backward runs once, in the opposite order of the forwards."""
    calls: list[str] = []
    made = engine()
    program = made._programs[0](1)
    traced = [
        type(op)(op.name, lambda n=op.name: calls.append("f " + n), lambda n=op.name: calls.append("b " + n))
        for op in program.ops
    ]
    program.ops = tuple(traced)
    program.forward()
    program.backward()
    names = [op.name for op in traced]
    assert calls == ["f " + n for n in names] + ["b " + n for n in reversed(names)]
    assert len(set(names)) == len(names) == 3 + 8 * SHAPE.n_layers


def test_lengths_below_the_context() -> None:
    """Guards prompts: the first tokens of a row give the same hidden state, whatever comes after them."""
    made = engine()
    weights, grads = views(made._weights, SHAPE), views(made._parts[0]["grad"], SHAPE)
    rows = batches(1)[0][:1]
    last = []
    for length in (3, SHAPE.context):
        program = Program(SHAPE, LOOPS, weights, grads, made._parts[0], 1, length, 1.0)
        program.ids[:] = rows[:, :length]
        program.hidden()
        last.append(made._parts[0][f"y.{2 * SHAPE.n_layers}"][2].copy())
    assert_close(last[0], last[1], atol=1e-6, rtol=1e-6, what="hidden state of token 2")


def test_against_torch() -> None:
    """A third opinion on the whole model, in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    batch = batches(1)[0]
    _, gradient = engine(UNTIED, kernels=TWINS, dtype="float64").gradient(batch)
    leaf = torch.tensor(start_weights(UNTIED).astype(np.float64), requires_grad=True)
    torch_loss(torch, leaf, UNTIED, torch.tensor(batch).long()).backward()
    assert_close(gradient, leaf.grad.numpy(), atol=1e-12, rtol=1e-9, what="gradient")


def torch_loss(torch: Any, flat: Any, shape: Shape, batch: Any) -> Any:
    """The model of the design, written in PyTorch's own operations over the flat vector."""
    functional = torch.nn.functional
    at = {n: torch.tensor(v) for n, v in views(np.arange(count(shape)), shape).items()}
    w = {name: flat[index] for name, index in at.items()}
    ids, targets = batch[:, :-1], batch[:, 1:]
    b, t = ids.shape
    c, h = shape.d_model, shape.n_heads

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (c,), w[name + ".gamma"], w[name + ".beta"], eps=1e-5)

    x = w["wte"][ids] + w["wpe"][:t]
    for i in range(shape.n_layers):
        y = norm(x, f"{i}.LN1")
        q, k, v = ((y @ w[f"{i}.{n}"]).view(b, t, h, c // h).transpose(1, 2) for n in ("W_Q", "W_K", "W_V"))
        att = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + att @ w[f"{i}.W_O"]
        y = norm(x, f"{i}.LN2")
        x = x + functional.gelu(y @ w[f"{i}.W_1"], approximate="tanh") @ w[f"{i}.W_2"]
    logits = norm(x, "LN_f") @ w["wte" if shape.tied_head else "head"].T
    return functional.cross_entropy(logits.reshape(b * t, -1), targets.reshape(-1))
