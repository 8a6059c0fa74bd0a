"""The MLP's products with GELU in them, against float64 and against themselves. Only Hopper has them."""

import numpy as np
import pytest
from card import DTYPES, Card, check, rounded
from test_kernels_layers import gelu

from andrea.engine.cuda.mlp_fused import ARCH, MAPS, PRECISIONS, FusedMlp
from andrea.engine.cuda.tensor_map import WORDS

REPEATS = 20


@pytest.fixture(params=PRECISIONS)
def pair(request: pytest.FixtureRequest, card: Card) -> tuple[FusedMlp, str]:
    if card.device.arch != ARCH:
        pytest.skip(f"sm_{card.device.arch} has no such products")
    maps = card.up(np.zeros((2, MAPS, WORDS)), "int32")
    return FusedMlp(card.device, request.param, maps), DTYPES[request.param]


@pytest.mark.parametrize(("n", "c"), [(1, 64), (77, 192), (1025, 384), (129, 768), (20001, 128)])
def test_both_directions(card: Card, pair: tuple[FusedMlp, str], n: int, c: int) -> None:
    """Rows that fill no tile, one stage and many, more tiles than multiprocessors; what lies behind the last row stays."""
    (fused, dtype), rng = pair, np.random.default_rng(n)
    x, dy, w_1, w_2 = (
        rounded(rng.normal(0, s, z), dtype) for s, z in ((1, (n, c)), (1, (n, c)), (0.1, (c, 4 * c)), (0.1, (4 * c, c)))
    )
    X, DY, W_1, W_2 = (card.up(t, dtype) for t in (x, dy, w_1, w_2))
    outs = [card.empty(dtype, n + 8, 4 * c) for _ in range(4)]
    h, a, dh, again = (t.part(0, n, 4 * c) for t in outs)
    forward, backward = fused.forward(h, a, X, W_1), fused.backward(dh, again, DY, W_2, h)
    for call in (forward, backward):
        call()
    got = [card.down(t)[:n] for t in outs]
    want, held = x @ w_1, got[0].astype(np.float64)  # h is rounded, and GELU's error is measured from there
    check(got[0], want, rounded(want, dtype), dtype, "h")
    (value, slope), da = gelu(held, np.ones_like(held)), dy @ w_2.T
    check(got[1], value, rounded(value, dtype), dtype, "a")
    check(got[2], da * slope, rounded(rounded(da, dtype) * slope, dtype), dtype, "dh")
    assert np.array_equal(got[1], got[3]), "backward must make the forward's bits again"
    assert all(np.isnan(card.down(t)[n:]).all() for t in outs), "rows behind the last are written"
    for _ in range(REPEATS):
        for call in (forward, backward):
            call()
        assert all(np.array_equal(card.down(t)[:n], first) for t, first in zip(outs, got, strict=True))


def test_nan_stays_in_its_row(card: Card, pair: tuple[FusedMlp, str]) -> None:
    """A NaN must reach everything that is computed from it, and nothing else."""
    fused, dtype = pair
    rng, n, c = np.random.default_rng(0), 300, 64
    x, dy = rng.normal(size=(n, c)), rng.normal(size=(n, c))
    x[7, 3], dy[130, 5] = np.nan, np.nan
    w_1, w_2 = (card.up(rng.normal(size=s), dtype) for s in ((c, 4 * c), (4 * c, c)))
    h, a, dh, again = (card.empty(dtype, n, 4 * c) for _ in range(4))
    fused.forward(h, a, card.up(x, dtype), w_1)()
    fused.backward(dh, again, card.up(dy, dtype), w_2, h)()
    for t, rows in ((h, [7]), (a, [7]), (again, [7]), (dh, [7, 130])):
        bad = np.isnan(card.down(t))
        assert bad.any(axis=1).nonzero()[0].tolist() == rows
        assert bad[rows].all()
