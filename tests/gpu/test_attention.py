"""Attention on the card against float64, at every width and precision, at lengths that no tile divides."""

from typing import Any

import numpy as np
import pytest
from card import DTYPES, PRECISIONS, Card, check, rounded
from numpy.typing import NDArray

from andrea.engine.cuda import attention
from andrea.engine.cuda.attention import HEAD_WIDTHS, Launch
from andrea.engine.cuda.tensor import Tensor

Arrays = dict[str, NDArray[Any]]
REPEATS = 20
SHAPES = [(1, 1, 1), (3, 77, 5), (9, 65, 2), (1, 1023, 3), (3, 1024, 1), (1, 1025, 3)]  # B, T, H
CANCELLATION = 2.0**-18  # of dp against delta, absolute: a row that sees one key has ds = 0 in exact arithmetic


def reference(qkv: NDArray[Any], dout: NDArray[Any], dtype: str | None) -> Arrays:
    """Attention and its gradients in float64; with `dtype`, the same maths as a kernel of that type may do it.

    That is float32 throughout for float32, and p, ds and the results rounded for 16 bits.
    """
    if dtype == "float32":
        qkv, dout = qkv.astype(np.float32), dout.astype(np.float32)
    low = (lambda a: rounded(a, dtype)) if dtype in ("bfloat16", "float16") else (lambda a: a)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))  # (B, H, T, D)
    do, scale = dout.transpose(0, 2, 1, 3), float(1 / np.sqrt(q.shape[3]))
    s = q @ k.swapaxes(2, 3) * scale
    s[..., np.triu(np.ones(s.shape[2:], bool), 1)] = -np.inf
    top = s.max(axis=3, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(axis=3, keepdims=True))
    p = np.exp(s - lse)
    out = low(low(p) @ v)
    ds = low(p * (do @ v.swapaxes(2, 3) - (do * out).sum(axis=3, keepdims=True)))
    grads = (ds @ k * scale, ds.swapaxes(2, 3) @ q * scale, low(p).swapaxes(2, 3) @ do)
    dqkv = np.stack([low(g) for g in grads], axis=2)  # (B, H, 3, T, D)
    return {"out": out.transpose(0, 2, 1, 3), "lse": lse[..., 0], "dqkv": dqkv.transpose(0, 3, 2, 1, 4)}


class Attention:
    """Buffers of one call, packed as the engine packs them, and the launches of the engine's own table."""

    def __init__(
        self, card: Card, precision: str, qkv: NDArray[Any], dout: NDArray[Any], table: int | None = None
    ) -> None:
        self.card, self.precision, self.dtype = card, precision, DTYPES[precision]
        self.arch = table or card.device.arch
        self.b, self.t, _, self.h, self.d = qkv.shape
        self.n = self.b * self.t
        self.qkv = card.up(qkv.reshape(self.n, 3, self.h, self.d), self.dtype)
        self.dout = card.up(dout.reshape(self.n, self.h, self.d), self.dtype)

    def results(self) -> Arrays:
        """Forward and backward into buffers full of NaN."""
        dims = (self.b, self.t, self.h, self.d)
        values: dict[str, Tensor | int] = {
            "qkv": self.qkv,
            "dout": self.dout,
            "out": self.card.empty(self.dtype, self.n, self.h, self.d),
            "dqkv": self.card.empty(self.dtype, self.n, 3, self.h, self.d),
            "lse": self.card.empty("float32", self.b, self.h, self.t),
            **{k: self.card.empty("float32", size // 4) for k, size in attention.scratch(*dims).items()},
            **dict(zip("BTH", dims, strict=False)),
        }
        for make in (attention.forward, attention.backward):
            for launch in make(*dims, self.precision, self.arch):
                self._run(launch, values)
        shape = (self.b, self.t, 3, self.h, self.d)
        found = {k: self.card.down(values[k]) for k in ("out", "lse", "dqkv")}  # type: ignore[arg-type]
        return {**found, "out": found["out"].reshape(dims), "dqkv": found["dqkv"].reshape(shape)}

    def _run(self, launch: Launch, values: dict[str, Tensor | int]) -> None:
        form = (self.d, self.precision, self.arch)
        file, defines = attention.source(*form), attention.defines(*form)
        arguments = [values[name] for name in launch.args]
        run = self.card.device.kernel(file, launch.kernel, self.precision, defines)
        run(launch.grid, launch.block, *arguments, shared=launch.shared)


def inputs(b: int, t: int, h: int, d: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of a few units, so that the softmax is neither flat nor one-hot."""
    rng = np.random.default_rng(1000 * t + d)
    return rounded(rng.normal(0, 1.3, (b, t, 3, h, d)), dtype), rounded(rng.normal(0, 1, (b, t, h, d)), dtype)


def compare(got: Arrays, ref: Arrays, low: Arrays, dtype: str) -> None:
    check(got["out"], ref["out"], low["out"], dtype, "out")
    check(got["lse"], ref["lse"], np.asarray(ref["lse"], np.float32), "float32", "lse")
    for i, what in enumerate(("dq", "dk", "dv")):
        check(got["dqkv"][:, :, i], ref["dqkv"][:, :, i], low["dqkv"][:, :, i] + CANCELLATION, dtype, what)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", HEAD_WIDTHS)
@pytest.mark.parametrize(("b", "t", "h"), SHAPES)
def test_forward_and_backward(card: Card, precision: str, d: int, b: int, t: int, h: int) -> None:
    """A wrong mask, tile edge, row beyond T or head offset, or an element that nobody writes."""
    dtype = DTYPES[precision]
    qkv, dout = inputs(b, t, h, d, dtype)
    got = Attention(card, precision, qkv, dout).results()
    compare(got, reference(qkv, dout, None), reference(qkv, dout, dtype), dtype)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("d", HEAD_WIDTHS)
@pytest.mark.parametrize(("b", "t", "h"), SHAPES)
def test_as_on_an_older_card(card: Card, precision: str, d: int, b: int, t: int, h: int) -> None:
    """The kernels that cards without wgmma run; the developer's card would never meet them otherwise."""
    dtype = DTYPES[precision]
    qkv, dout = inputs(b, t, h, d, dtype)
    got = Attention(card, precision, qkv, dout, table=80).results()
    compare(got, reference(qkv, dout, None), reference(qkv, dout, dtype), dtype)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", HEAD_WIDTHS)
def test_rising_scores(card: Card, precision: str, d: int) -> None:
    """The maximum of a row grows at every step: sums made before must be rescaled, and nothing may overflow."""
    dtype, t = DTYPES[precision], 333
    qkv, dout = inputs(1, t, 2, d, dtype)
    qkv[:, :, 1] *= np.linspace(0, 8, t)[None, :, None, None]
    qkv = rounded(qkv, dtype)
    got = Attention(card, precision, qkv, dout).results()
    compare(got, reference(qkv, dout, None), reference(qkv, dout, dtype), dtype)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", HEAD_WIDTHS)
def test_same_bits_every_time(card: Card, precision: str, d: int) -> None:
    """A race between copies and reads, or a sum whose order the hardware chooses."""
    attempt = Attention(card, precision, *inputs(2, 515, 3, d, DTYPES[precision]))
    first = attempt.results()
    for _ in range(REPEATS - 1):
        for name, again in attempt.results().items():
            assert np.array_equal(first[name], again), name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_comes_out(card: Card, precision: str) -> None:
    """A maximum drops NaN; the result must not, or a broken model would train on."""
    qkv, dout = inputs(1, 130, 1, 32, DTYPES[precision])
    qkv[0, 70, 1, 0, 5] = np.nan
    got = Attention(card, precision, qkv, dout).results()
    assert np.isfinite(got["out"][0, :70]).all()
    assert np.isnan(got["out"][0, 70:]).all()
    assert np.isnan(got["dqkv"][0, 70:, 0]).all()
