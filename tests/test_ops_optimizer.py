"""Gradient norm, scaling, AdamW and clearing."""

import math
from typing import Any

import numpy as np
import pytest
from compare import assert_close, normal

from andrea.engine.kernels import NORM_CHUNK, Kernels
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.reference import KERNELS as TWINS

both = pytest.mark.parametrize("kernels", [TWINS, LOOPS], ids=["twin", "loops"])
SETTINGS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1}


@both
@pytest.mark.parametrize("size", [1, 63, 4097, NORM_CHUNK, NORM_CHUNK + 1, 3 * NORM_CHUNK - 5])
def test_norm(kernels: Kernels, size: int) -> None:
    """Guards the last chunk and the tail of the lanes, and float32 sums that lose small terms."""
    g = normal(1, size, dtype="float32")
    partials = np.full(math.ceil(size / NORM_CHUNK), np.nan)
    kernels.k_grad_norm_partial(partials, g)
    norm = kernels.k_grad_norm_final(partials)
    assert_close(norm, np.sqrt((g.astype(np.float64) ** 2).sum()), atol=0, rtol=1e-6, what="norm")


@both
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_norm_shows_what_is_not_finite(kernels: Kernels, bad: float) -> None:
    """Guards the freeze: one bad element among many must reach the norm."""
    g = normal(1, 100_000, dtype="float32")
    g[70_001] = bad
    partials = np.zeros(2)
    kernels.k_grad_norm_partial(partials, g)
    assert not math.isfinite(kernels.k_grad_norm_final(partials))


@both
def test_scale_and_zero(kernels: Kernels) -> None:
    """Guards the tail of a vector loop."""
    g = normal(1, 37, dtype="float32")
    want = g * np.float32(0.25)
    kernels.k_grad_scale(g, 0.25)
    assert np.array_equal(g, want)
    kernels.k_zero_grads(g)
    assert not g.any()


def adamw_by_hand(w: Any, g: Any, steps: int, lr: float, beta1: float, beta2: float, eps: float, decay: float) -> Any:
    """The published algorithm, written out in float64 for one constant gradient."""
    m = v = np.zeros_like(w)
    for t in range(1, steps + 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w - lr * (m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * w)
    return w


@both
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw(kernels: Kernels, decay: float) -> None:
    """Guards bias correction, eps outside the root (gradients of 1e-7 show it) and decay that is not divided."""
    w, g = normal(1, 41), normal(2, 41)
    g[::5] *= 1e-7
    settings = SETTINGS | {"decay": decay}
    low, m, v = w.astype(np.float32), np.zeros(41, np.float32), np.zeros(41, np.float32)
    for step in range(1, 6):
        kernels.k_adamw(low, m, v, g.astype(np.float32), **settings, step=step)
    assert_close(low, adamw_by_hand(w, g, 5, **settings), atol=2e-6, rtol=2e-6, what="weights")


def test_adamw_late_step() -> None:
    """Guards the correction far on: at step a million it is 1, and must not underflow into a division by zero."""
    w, m, v = (normal(s, 9, dtype="float32") for s in (1, 2, 3))
    v = np.abs(v)
    got, want = [x.copy() for x in (w, m, v)], [x.astype(np.float64) for x in (w, m, v)]
    g = normal(4, 9, dtype="float32")
    LOOPS.k_adamw(*got, g, **SETTINGS, step=1_000_000)
    TWINS.k_adamw(*want, g.astype(np.float64), **SETTINGS, step=1_000_000)
    for name, a, b in zip("wmv", got, want, strict=True):
        assert_close(a, b, atol=1e-6, rtol=1e-6, what=name)


def test_adamw_against_torch() -> None:
    """A third opinion in float64, over steps with changing gradients."""
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency; install it to compare")
    w, m, v = normal(1, 23), np.zeros(23), np.zeros(23)
    leaf = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.AdamW([leaf], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step in range(1, 8):
        g = normal(100 + step, 23)
        leaf.grad = torch.tensor(g)
        optimizer.step()
        TWINS.k_adamw(w, m, v, g, **SETTINGS, step=step)
    assert_close(w, leaf.detach().numpy(), atol=1e-12, rtol=1e-12, what="weights")
