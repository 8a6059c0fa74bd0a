"""Embedding, LayerNorm, GELU, residual sum and cross-entropy on the card, against their float64 twins."""

import numpy as np
import pytest
from card import DTYPES, PRECISIONS, Card, check, rounded

from andrea.engine.cuda.blocks import embed_grids, loss_launch, norm_defines, norm_grid
from andrea.engine.kernels import LAYERNORM_EPS
from andrea.engine.reference import KERNELS

SLABS, REPEATS = 256, 10
PARTS = ("fwd", "bwd", "bwd_params")
ROWS_AND_WIDTH = [(1, 32), (77, 96), (8999, 384), (5003, 768), (67, 1000), (67, 1536), (131, 2048), (259, 4096)]


def up(a: int, b: int) -> int:
    return -(-a // b)


def pack(precision: str) -> int:
    return 4 if precision == "fp32" else 8


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("n", "c"), ROWS_AND_WIDTH)
def test_layernorm(card: Card, precision: str, n: int, c: int) -> None:
    """Forward, and backward that adds; gamma is not 1 and beta not 0, or a forgotten factor would pass."""
    rng, dtype = np.random.default_rng(n + c), DTYPES[precision]
    x, dy, dx0 = (rounded(rng.normal(1, 2, (n, c)), dtype) for _ in range(3))
    gamma, beta, dgamma0, dbeta0 = (rounded(rng.normal(1, 1, c), "float32") for _ in range(4))
    wide = {k: np.zeros(s) for k, s in (("y", (n, c)), ("mean", n), ("rstd", n))}
    narrow = {k: np.zeros_like(v, np.float32) for k, v in wide.items()}
    KERNELS.k_layernorm_fwd(wide["y"], wide["mean"], wide["rstd"], x, gamma, beta)
    f = [a.astype(np.float32) for a in (x, gamma, beta, dy)]
    KERNELS.k_layernorm_fwd(narrow["y"], narrow["mean"], narrow["rstd"], *f[:3])
    y, mean, rstd = card.empty(dtype, n, c), card.empty("float32", n), card.empty("float32", n)
    X, G, B = card.up(x, dtype), card.up(gamma, "float32"), card.up(beta, "float32")
    defines = norm_defines(c, pack(precision))
    forward, backward, params = (
        card.device.kernel("layernorm.cu", f"k_layernorm_{k}", precision, defines) for k in PARTS
    )
    forward(norm_grid(n, c, pack(precision)), 256, y, mean, rstd, X, G, B, n, c, LAYERNORM_EPS)
    check(card.down(y), wide["y"], rounded(narrow["y"], dtype), dtype, "y")
    check(card.down(mean), wide["mean"], narrow["mean"], "float32", "mean")
    check(card.down(rstd), wide["rstd"], narrow["rstd"], "float32", "rstd")

    ref = [dx0.copy(), dgamma0.copy(), dbeta0.copy()]
    low = [a.astype(np.float32) for a in ref]
    for _ in range(2):
        KERNELS.k_layernorm_bwd(*ref, dy, x, gamma, wide["mean"], wide["rstd"])
        KERNELS.k_layernorm_bwd(*low, f[3], f[0], f[1], narrow["mean"], narrow["rstd"])
        low[0] = rounded(low[0], dtype).astype(np.float32)
    outs = []
    DY, where = (
        card.up(dy, dtype),
        card.up(np.array([2 * c]), "int32"),
    )  # dgamma and dbeta stand in the middle of the gradients
    for _ in range(REPEATS):
        dx, flat = (
            card.up(dx0, dtype),
            card.up(np.concatenate([np.zeros(2 * c), dgamma0, dbeta0, np.ones(c)]), "float32"),
        )
        partial = card.empty("float32", 1, SLABS, 2, c)
        for _ in range(2):  # twice: it must add
            backward((SLABS,), 256, dx, partial.reshape(SLABS, 2, c), dx, DY, X, G, mean, rstd, n, c)
            params((up(2 * c, 32), 1), 256, flat, where, partial, SLABS, c)
        assert not card.down(flat)[: 2 * c].any()
        dgamma, dbeta = flat.part(2 * c, c), flat.part(3 * c, c)
        outs.append([card.down(t) for t in (dx, dgamma, dbeta)])
    for got, want, lo, d, what in zip(
        outs[0], ref, low, (dtype, "float32", "float32"), ("dx", "dgamma", "dbeta"), strict=True
    ):
        check(got, want, lo, d, what)
    for other in outs[1:]:
        for a, b in zip(outs[0], other, strict=True):
            assert np.array_equal(a, b), "LayerNorm's backward must repeat bit for bit"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("b", "t", "c", "v"), [(1, 1, 32, 101), (2, 77, 96, 101), (9, 341, 384, 2305), (1, 1025, 768, 8449)]
)
def test_embedding(card: Card, precision: str, b: int, t: int, c: int, v: int) -> None:
    """Backward adds, position by position, also for tokens that fill half and a quarter of the batch, and one that never comes."""
    rng, dtype = np.random.default_rng(t), DTYPES[precision]
    tokens = rng.integers(0, v - 1, (b, t + 1)).astype(np.int32)
    tokens[:, ::2], tokens[:, 1::4] = 3, 3 + up(v, 16)  # one block of k_embed_bwd has both
    wte, wpe = rng.normal(size=(v, c)).astype(np.float32), rng.normal(size=(t + 2, c)).astype(np.float32)
    dx = rounded(rng.normal(size=(b * t, c)), dtype)
    x = card.empty(dtype, b * t, c)
    TOK = card.up(tokens, "int32")
    grid, back = embed_grids(b, t, c, v, pack(precision))
    card.run("embed.cu", "k_embed_fwd", precision, grid, 128, x, TOK, card.up(wte, "float32"), card.up(wpe, "float32"),
             b, t, t + 1, c)  # fmt: skip
    ids = np.ascontiguousarray(tokens[:, :-1])
    want = np.zeros((b * t, c))
    KERNELS.k_embed_fwd(want, ids, wte.astype(np.float64), wpe.astype(np.float64))
    check(card.down(x), want, rounded(want, dtype), dtype, "x")
    flat = ids.reshape(-1)
    order, first = np.argsort(flat, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=v))])
    dwte0, dwpe0 = rng.normal(size=(v, c)).astype(np.float32), rng.normal(size=(t + 2, c)).astype(np.float32)
    ref, low = [dwte0.astype(np.float64), dwpe0.astype(np.float64)], [dwte0.copy(), dwpe0.copy()]
    for _ in range(2):
        KERNELS.k_embed_bwd(*ref, dx, ids)
        KERNELS.k_embed_bwd(*low, dx.astype(np.float32), ids)
    outs = []
    for _ in range(3):
        dwte, dwpe, DX = card.up(dwte0, "float32"), card.up(dwpe0, "float32"), card.up(dx, dtype)
        for _ in range(2):
            card.run(
                "embed.cu",
                "k_embed_bwd",
                precision,
                back,
                256,
                dwte,
                dwpe,
                DX,
                card.up(order, "int32"),
                card.up(first, "int32"),
                v,
                b,
                t,
                c,
            )
        outs.append([card.down(dwte), card.down(dwpe)])
    for got, want_, lo, what in zip(outs[0], ref, low, ("dwte", "dwpe"), strict=True):
        check(got, want_, lo, "float32", what)
    assert all(np.array_equal(a, b) for o in outs[1:] for a, b in zip(outs[0], o, strict=True))


def gelu(h: np.ndarray, da: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """gelu(h), and da gelu'(h)."""
    scale, cube = h.dtype.type(np.sqrt(2 / np.pi)), h.dtype.type(0.044715)
    tanh = np.tanh(scale * (h + cube * h**3))
    slope = (1 + tanh) / 2 + h * (1 - tanh * tanh) / 2 * scale * (1 + 3 * cube * h * h)
    return h * (1 + tanh) / 2, da * slope


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [8, 77 * 32, 1025 * 96])
def test_gelu_and_residual(card: Card, precision: str, size: int) -> None:
    """Values far out on both sides, where a form with tanh cancels."""
    rng, dtype = np.random.default_rng(size), DTYPES[precision]
    h, da = rounded(rng.normal(0, 4, size), dtype), rounded(rng.normal(size=size), dtype)
    (want, dwant), (low, dlow) = (gelu(h.astype(kind), da.astype(kind)) for kind in (np.float64, np.float32))
    H, a, dh, again = card.up(h, dtype), card.empty(dtype, size), card.empty(dtype, size), card.empty(dtype, size)
    grid = (up(size, 256 * pack(precision)),)
    card.run("gelu.cu", "k_gelu_fwd", precision, grid, 256, a, H, size)
    card.run("gelu.cu", "k_gelu_bwd", precision, grid, 256, dh, again, card.up(da, dtype), H, size)
    check(card.down(a), want, rounded(low, dtype), dtype, "gelu")
    check(card.down(dh), dwant, rounded(dlow, dtype), dtype, "dgelu")
    assert np.array_equal(card.down(a), card.down(again)), "backward must make the forward's bits again"
    out, left, right = (card.empty(dtype, size) for _ in range(3))
    card.run("residual.cu", "k_residual_add", precision, grid, 256, out, H, card.up(da, dtype), size)
    check(card.down(out), h + da, rounded(h + da, dtype), dtype, "residual")
    card.run("residual.cu", "k_residual_add_bwd", precision, grid, 256, left, right, H, size)
    assert np.array_equal(card.down(left), h)
    assert np.array_equal(card.down(right), h)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("b", "t", "v"), [(1, 1, 101), (2, 77, 2305), (1, 1023, 8449), (1, 3, 33000)])
def test_cross_entropy(card: Card, precision: str, b: int, t: int, v: int) -> None:
    """Padding must not count and must get a zero gradient; the fused kernel gives what the pair gives."""
    rng, dtype, n, scale = np.random.default_rng(v), DTYPES[precision], b * t, 8.0
    p = up(v, 128) * 128
    logits = rounded(rng.normal(0, 3, (n, p)), dtype)
    logits[:, v:] = 50.0  # would win every softmax
    tokens = rng.integers(0, v, (b, t + 1)).astype(np.int32)
    target = tokens[:, 1:].reshape(-1)
    top = logits[:, :v].max(axis=1)
    lse = top + np.log(np.exp(logits[:, :v] - top[:, None]).sum(axis=1))
    losses = lse - logits[np.arange(n), target]
    want = np.zeros((n, p))
    want[:, :v] = np.exp(logits[:, :v] - lse[:, None])
    want[np.arange(n), target] -= 1
    want *= scale / n
    control = card.up(np.zeros(9), "float32")
    card.device.write(control.part(0, 1), np.array([scale]))
    for fused in (False, True):
        L, losses_, lse_ = card.up(logits, dtype), card.empty("float32", n), card.empty("float32", n)
        TOK = card.up(tokens, "int32")
        if fused:
            block, options = loss_launch(p, pack(precision))
            kernel = card.device.kernel("loss.cu", "k_loss_fused", precision, options)
            kernel((n,), block, losses_, L, TOK, control, t, v, p)
        else:
            card.run("loss.cu", "k_loss_fwd", precision, (n,), 256, losses_, lse_, L, TOK, t, v, p)
            card.run("loss.cu", "k_loss_bwd", precision, (n,), 256, L, lse_, TOK, control, t, v, p)
            check(card.down(lse_), lse, lse.astype(np.float32), "float32", "lse")
        check(card.down(losses_), losses, losses.astype(np.float32), "float32", "losses")
        got = card.down(L)
        check(got, want, rounded(want, dtype), dtype, "dlogits")
        assert not got[:, v:].any(), "padding's gradient must be zero"
    card.run("loss.cu", "k_loss_mean", precision, (1,), 1024, control, card.up(losses, "float32"), n, 0.5)
    assert card.down(control)[1] == pytest.approx(0.5 * losses.mean(), rel=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("at", [0, 5, 2304])
def test_a_nan_logit_is_a_nan_loss(card: Card, precision: str, at: int) -> None:
    """A maximum that passes over NaN would hide it."""
    v, p, dtype = 2305, 2432, DTYPES[precision]
    logits = np.zeros((1, p), np.float32)
    logits[0, at] = np.nan
    losses, lse, tokens = card.empty("float32", 1), card.empty("float32", 1), card.up(np.zeros((1, 2)), "int32")
    card.run("loss.cu", "k_loss_fwd", precision, (1,), 256, losses, lse, card.up(logits, dtype), tokens, 1, v, p)
    assert np.isnan(card.down(losses)[0])
    block, options = loss_launch(p, pack(precision))
    losses, control = card.up(np.zeros(1), "float32"), card.up(np.ones(9), "float32")
    fused = (losses, card.up(logits, dtype), tokens, control, 1, v, p)
    card.run("loss.cu", "k_loss_fused", precision, (1,), block, *fused, defines=options)
    assert np.isnan(card.down(losses)[0])
