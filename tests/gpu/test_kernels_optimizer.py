"""Norm, clipping, AdamW, working copies and the loss scale on the card, against their twins."""

import numpy as np
import pytest
from card import DTYPES, PRECISIONS, Card, check, rounded

from andrea.engine.cuda.weights import chunk_table, copied_elements, copies
from andrea.engine.layout import count, decay_groups, parameters
from andrea.engine.reference import KERNELS
from andrea.experiment import Shape

SHAPE = Shape(vocab_size=101, d_model=96, n_heads=3, n_layers=2, context=33, tied_head=True)
NORM_CHUNK, WINDOW = 8192, 64
KEEP1, KEEP2, EPS, DECAY, CLIP = 0.1, 0.001, 1e-8, 0.1, 1.0


def control(card: Card, scale: float = 1.0, loss: float = 2.5, streak: int = 0, good: int = 0) -> object:
    words = np.zeros(9, np.int32)
    words.view(np.float32)[:2] = scale, loss
    words[6], words[7] = good, streak
    return card.up(words, "int32")


def final(card: Card, gradient: np.ndarray, ctl: object, *, share: float = 1.0, dynamic: int = 0) -> tuple:
    n = len(gradient)
    g, parts = card.up(gradient, "float32"), -(-n // NORM_CHUNK)
    partial, losses, norms = card.empty("float32", parts), card.empty("float32", WINDOW), card.empty("float32", WINDOW)
    card.run("optimizer.cu", "k_grad_norm_partial", "fp32", (parts,), 256, partial, g, n)
    card.run(
        "optimizer.cu",
        "k_grad_norm_final",
        "fp32",
        (1,),
        1024,
        ctl,
        losses,
        norms,
        partial,
        parts,
        share,
        CLIP,
        dynamic,
    )
    return g, card.down(ctl), card.down(losses), card.down(norms)


@pytest.mark.parametrize("n", [4, 77 * 4, 8192, 8196, 300_000])
def test_norm_and_clipping(card: Card, n: int) -> None:
    """The factor unscales, averages and clips at once; the sum of squares repeats bit for bit."""
    gradient = np.random.default_rng(n).normal(0, 3, n).astype(np.float32)
    results = [final(card, gradient, control(card, scale=4.0), share=0.5) for _ in range(20)]
    g, words, losses, norms = results[0]
    want = np.sqrt(np.square(gradient.astype(np.float64)).sum()) * 0.5 / 4.0
    assert norms[0] == pytest.approx(want, rel=1e-5)
    assert losses[0] == 2.5
    assert np.isnan(norms[1:]).all()
    factor = words.view(np.float32)[2]
    assert factor == pytest.approx(0.125 * min(1.0, CLIP / want), rel=1e-5)
    assert list(words[3:6]) == [1, 0, 1]
    assert words.view(np.float32)[1] == 0.0
    assert all(np.array_equal(r[3], norms, equal_nan=True) for r in results)
    ctl = card.up(words, "int32")
    card.run("optimizer.cu", "k_grad_scale", "fp32", (-(-n // 1024),), 256, g, ctl, n)
    assert np.array_equal(card.down(g), gradient * factor)
    card.run("optimizer.cu", "k_zero_grads", "fp32", (-(-n // 1024),), 256, g, n)
    assert not card.down(g).any()


def test_what_is_not_finite_freezes(card: Card) -> None:
    """Outside fp16 one bad step stops all updates; in fp16 an overflow is skipped, twenty in a row are not."""
    bad = np.full(8, np.inf, np.float32)
    _, words, _, norms = final(card, bad, control(card))
    assert list(words[3:5]) == [0, 1]
    assert np.isinf(norms[0])
    _, words, _, norms = final(card, np.ones(8, np.float32), control(card, loss=float("nan")), dynamic=1)
    assert list(words[3:5]) == [0, 1]
    _, words, _, norms = final(card, bad, control(card, scale=1024.0), dynamic=1)
    assert list(words[3:5]) == [0, 0]
    assert norms[0] == 0.0
    assert words.view(np.float32)[0] == 512.0
    assert list(words[6:9]) == [0, 1, 1]
    _, words, _, norms = final(card, bad, control(card, scale=1024.0, streak=19), dynamic=1)
    assert list(words[3:5]) == [0, 1]
    assert np.isinf(norms[0])
    _, words, _, _ = final(card, np.ones(8, np.float32), control(card, scale=1024.0, good=1999), dynamic=1)
    assert words.view(np.float32)[0] == 2048.0
    assert words[6] == 0


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tied", [True, False])
def test_adamw_and_working_copies(card: Card, precision: str, tied: bool) -> None:
    """Gains and biases do not decay; every matrix arrives rounded at its place in the copy, padding stays zero."""
    shape = Shape(101, 96, 3, 2, 33, tied)
    rng, n, dtype = np.random.default_rng(1), count(shape), DTYPES[precision]
    w, m, g = (rng.normal(size=n).astype(np.float32) for _ in range(3))
    v = np.square(rng.normal(size=n)).astype(np.float32)
    table = chunk_table(shape, precision != "fp32")
    words = np.zeros(9, np.int32)
    words.view(np.float32)[2], words[3] = 0.5, 1
    step, lr = 7, 1e-2
    rates = np.array([lr, 1 / (1 - 0.9**step), 1 / (1 - 0.999**step), 0])
    W, M, V = (card.up(a, "float32") for a in (w, m, v))
    size = copied_elements(shape) if precision != "fp32" else 8
    copy = card.up(np.zeros(size), dtype)
    ctl, chunks = card.up(words, "int32"), card.up(table, "int32")
    arguments = (W, M, V, copy, card.up(g, "float32"), chunks, ctl, card.up(rates, "float32"), KEEP1, KEEP2, EPS, DECAY)
    card.run("optimizer.cu", "k_adamw", precision, (len(table),), 256, *arguments)
    for kind in (np.float64, np.float32):
        a = [x.astype(kind) for x in (w, m, v, g * np.float32(0.5))]
        for start, stop, decays in decay_groups(shape):
            KERNELS.k_adamw(*(x[start:stop] for x in a), lr, 0.9, 0.999, EPS, DECAY if decays else 0.0, step)
        ref, low = (a, None) if kind is np.float64 else (ref, a)  # noqa: F821
    got = [card.down(t) for t in (W, M, V)]
    for x, r, lo, name in zip(got, ref, low, ("w", "m", "v"), strict=False):
        check(x, r, lo, "float32", name)
    if precision != "fp32":
        held = np.zeros(size)
        for p in parameters(shape):
            if p.name in copies(shape):
                c = copies(shape)[p.name]
                rows = c.offset + np.arange(p.shape[0])[:, None] * c.stride + np.arange(p.shape[1])
                held[rows] = rounded(got[0][p.offset : p.offset + p.size].reshape(p.shape), dtype)
        assert np.array_equal(card.down(copy), held)
        fresh = card.up(np.zeros(size), dtype)
        card.run("optimizer.cu", "k_copy_weights", precision, (len(table),), 256, fresh, W, chunks)
        assert np.array_equal(card.down(fresh), held)


def test_a_frozen_update_changes_nothing(card: Card) -> None:
    """The flag is read by AdamW itself: no host decision lies between."""
    n, table = count(SHAPE), chunk_table(SHAPE, False)
    W, M, V, G = (card.up(np.ones(n), "float32") for _ in range(4))
    rest = (card.up(np.zeros(8), "float32"), G, card.up(table, "int32"), card.up(np.zeros(9), "int32"))
    rates = card.up(np.ones(4), "float32")
    card.run("optimizer.cu", "k_adamw", "fp32", (len(table),), 256, W, M, V, *rest, rates, KEEP1, KEEP2, EPS, DECAY)
    assert all((card.down(t) == 1).all() for t in (W, M, V))
