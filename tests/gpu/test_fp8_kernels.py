"""Precision fp8's kernels on the card: casts against E4M3 in NumPy, products against float64."""

import dataclasses

import numpy as np
import pytest
from card import Card, rounded
from e4m3 import decode, encode

from andrea.engine.cuda import fp8
from andrea.engine.cuda.blocks import BLOCK, LN_BLOCKS_FP8, norm_defines, norm_grid
from andrea.engine.cuda.buffers import SLABS
from andrea.engine.cuda.cublaslt import CublasLt
from andrea.engine.cuda.matrix import PlainMatrix
from andrea.engine.cuda.matrix_fp8 import Fp8Matrix, Product, Scales, fast_product, plain_product
from andrea.engine.cuda.tensor import Tensor
from andrea.experiment import Shape

WIDE = Shape(vocab_size=101, d_model=96, n_heads=3, n_layers=2, context=77, tied_head=True)
ROWS = 8
FORMS = ("plain", "fast")


@pytest.fixture(autouse=True)
def _require_card(card: Card) -> None:
    if card.device.capability < fp8.CAPABILITY:
        pytest.skip(f"FP8 needs compute capability 8.9, this card has {card.device.capability}")


def buffers(card: Card, shape: Shape, weights: np.ndarray) -> dict[str, Tensor]:
    """The buffers of precision fp8, and the 16-bit copies that it casts from."""
    held = {"copy": card.up(weights, "bfloat16"), "control": card.up(np.zeros(9), "int32")}
    for b in fp8.fp8_buffers(shape, ROWS):
        held[b.name] = card.up(np.zeros(b.shape, np.uint8 if b.dtype == fp8.E4M3 else np.float32), b.dtype)
    return held


def some_weights(shape: Shape) -> np.ndarray:
    """Each matrix with a maximum of its own, so that a wrong scale shows."""
    size = max(at + rows * columns for at, rows, columns, _ in fp8.matrices(shape).values())
    values = np.random.default_rng(3).normal(size=size)
    for i, (at, rows, columns, _) in enumerate(fp8.matrices(shape).values()):
        values[at : at + rows * columns] *= 4.0**-i
    return rounded(values, "bfloat16")


def hard_numbers(n: int) -> np.ndarray:
    """Every size that E4M3 knows and more, every code, all halves between codes, both ends."""
    rng = np.random.default_rng(n)
    values = rng.choice([-1.0, 1.0], n) * 2.0 ** rng.uniform(-14, 10, n)
    table = decode(np.arange(127, dtype=np.uint8))
    special = np.concatenate([table, (table[1:] + table[:-1]) / 2, [0.0, -0.0, 464.0, 465.0, 1e30]])
    place = rng.permutation(n)[: len(special)]
    values[place] = special[: len(place)]
    return rounded(values, "bfloat16")


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Within bfloat16's rounding, and that of a sum: tensor cores keep fewer bits of it than float32 has."""
    limit = 2.0**-8 * np.abs(want) + 2.0**-11 * np.abs(want).max()
    wrong = ~(np.abs(got - want) <= limit)
    assert not wrong.any(), f"{wrong.sum()} of {want.size}: {got[wrong][:3]} for {want[wrong][:3]}"


def run(card: Card, calls: list) -> None:
    for call in calls:
        call()
    card.device.wait()


@pytest.mark.parametrize("n", [16, 48, 16 * 777, 16 * 256 * 1024 + 16])
@pytest.mark.parametrize("e", [0, -3, 12])
def test_cast_rounds_as_e4m3_does(card: Card, n: int, e: int) -> None:
    """One code off in one of a million numbers, a block that leaves a number out, a maximum that misses one."""
    values = hard_numbers(n) * 2.0**-e
    q, x = card.up(np.zeros(n, np.uint8), fp8.E4M3), card.up(values, "bfloat16")
    largest = card.up(np.full(fp8.CAST_BLOCKS, 2.0**-30, np.float32), "float32")
    scale = card.up(np.array([2.0**-e, 2.0**e, 0, 0], np.float32), "float32")
    grid = min(fp8.CAST_BLOCKS, -(-n // 4096))
    card.run("fp8.cu", "k_fp8_cast", "fp8", (grid,), 256, q, largest, x, scale, n)
    assert np.array_equal(card.down(q), encode(values * 2.0**e))
    seen = card.down(largest)
    assert seen.max() == np.float32(np.abs(values).max())
    assert (seen[grid:] == np.float32(2.0**-30)).all()


def test_cast_keeps_nan_and_cuts_infinity(card: Card) -> None:
    """A broken model must not look well after a cast; the loss finds NaN."""
    values = np.ones(64, np.float32)
    values[[3, 40]], values[[7, 50]] = np.nan, (np.inf, -np.inf)
    q, x = card.up(np.zeros(64, np.uint8), fp8.E4M3), card.up(values, "bfloat16")
    largest = card.up(np.zeros(1, np.float32), "float32")
    scale = card.up(np.array([1, 1, 0, 0], np.float32), "float32")
    card.run("fp8.cu", "k_fp8_cast", "fp8", (1,), 256, q, largest, x, scale, 64)
    got = decode(card.down(q))
    assert np.isnan(got[[3, 40]]).all()
    assert got[[7, 50]].tolist() == [448, -448]
    assert (np.delete(got, [3, 40, 7, 50]) == 1).all()


class Casts:
    """A kernel's own E4M3 output beside the cast of its 16-bit output."""

    def __init__(self, card: Card, *shape: int) -> None:
        self.card, self.shape, self.n = card, shape, int(np.prod(shape))
        self.scale = card.up(np.array([2.0**-4, 2.0**4, 0, 0], np.float32), "float32")
        self.q, self.largest = self._target()

    def _target(self) -> tuple[Tensor, Tensor]:
        largest = self.card.up(np.zeros(fp8.CAST_BLOCKS, np.float32), "float32")
        return self.card.up(np.full(self.shape, 0x55, np.uint8), fp8.E4M3), largest

    def check(self, source: Tensor) -> None:
        q, largest = self._target()
        grid = (min(fp8.CAST_BLOCKS, -(-self.n // 4096)),)
        flat = (q.reshape(self.n), largest, source.reshape(self.n), self.scale, self.n)
        self.card.run("fp8.cu", "k_fp8_cast", "fp8", grid, 256, *flat)
        assert np.array_equal(self.card.down(self.q), self.card.down(q))
        assert self.card.down(self.largest).max() == self.card.down(largest).max() > 0


@pytest.mark.parametrize(("n", "c"), [(3, 32), (617, 96), (8003, 384), (5001, 768), (1003, 1536)])
def test_layernorm_casts_what_it_writes(card: Card, n: int, c: int) -> None:
    """The fused form is the kernel and the cast in one: the same bits everywhere."""
    rng, options = np.random.default_rng(n), norm_defines(c, 8)
    x, dy, old = (card.up(rng.normal(size=(n, c)), "bfloat16") for _ in range(3))
    gamma, beta = card.up(rng.normal(size=c), "float32"), card.up(rng.normal(size=c), "float32")
    results = []
    for fused in (False, True):
        name = "k_fp8_layernorm" if fused else "k_layernorm"
        y, dx = card.empty("bfloat16", n, c), card.empty("bfloat16", n, c)
        mean, rstd, sums = card.empty("float32", n), card.empty("float32", n), card.empty("float32", SLABS, 2, c)
        places = [Casts(card, n, c) for _ in range(2)]
        value, gradient = ((p.q, p.largest, p.scale) if fused else () for p in places)
        grid = norm_grid(n, c, 8, LN_BLOCKS_FP8)
        forward, backward = (
            (y, mean, rstd, x, gamma, beta, *value),
            (dx, sums, old, dy, x, gamma, mean, rstd, *gradient),
        )
        card.run("layernorm.cu", f"{name}_fwd", "fp8", grid, BLOCK, *forward, n, c, 1e-5, defines=options)
        card.run("layernorm.cu", f"{name}_bwd", "fp8", (SLABS,), BLOCK, *backward, n, c, defines=options)
        results.append([card.down(t) for t in (y, mean, rstd, dx, sums)])
        if fused:
            places[0].check(y)
            places[1].check(dx)
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("n", [32, 32 * 777, 32 * 256 * 512 + 32])
def test_gelu_casts_what_it_would_write(card: Card, n: int) -> None:
    """Forward leaves out the 16-bit output; more packs than the largest grid has threads."""
    rng = np.random.default_rng(n)
    h, da = (card.up(rng.normal(0, 2, n), "bfloat16") for _ in range(2))
    a, dh, a2, dh2 = (card.empty("bfloat16", n) for _ in range(4))
    grid, value, gradient = -(-n // 2048), Casts(card, n), Casts(card, n)
    card.run("gelu.cu", "k_gelu_fwd", "fp8", (grid,), 256, a, h, n)
    fused = (min(grid, fp8.CAST_BLOCKS),)
    card.run("gelu.cu", "k_fp8_gelu_fwd", "fp8", fused, 256, value.q, value.largest, value.scale, h, n)
    value.check(a)
    card.run("gelu.cu", "k_gelu_bwd", "fp8", (grid,), 256, dh, a, da, h, n)
    places = (gradient.q, gradient.largest, gradient.scale)
    card.run("gelu.cu", "k_fp8_gelu_bwd", "fp8", fused, 256, dh2, a2, da, h, *places, n)
    gradient.check(dh)
    for one, other in ((a, a2), (dh, dh2)):
        assert np.array_equal(card.down(one), card.down(other))


@pytest.mark.parametrize("shape", [WIDE, dataclasses.replace(WIDE, d_model=32, n_heads=1)])
def test_weights_are_cast_in_both_layouts(card: Card, shape: Shape) -> None:
    """Widths that no tile divides: an edge that is left out, or a transposition that is off by a tile."""
    weights = some_weights(shape)
    held = buffers(card, shape, weights)
    run(card, Scales(card.device, shape, ROWS, held).weights())
    natural, transposed = card.down(held["fp8_natural"]), card.down(held["fp8_transposed"])
    scales = card.down(held["fp8_scales"])[fp8.tensors(shape) :]
    for i, (at, rows, columns, to) in enumerate(fp8.matrices(shape).values()):
        w = weights[at : at + rows * columns].reshape(rows, columns)
        e = int(fp8.exponents(np.array([np.abs(w).max()], np.float32), 0)[0])
        want, place = encode(w * 2.0**e), slice(to, to + rows * columns)
        assert scales[i, :2].tolist() == [2.0**-e, 2.0**e]
        assert np.array_equal(natural[place].reshape(rows, columns), want)
        assert np.array_equal(transposed[place].reshape(columns, rows), want.T)


def test_scales_follow_the_histories(card: Card) -> None:
    """The card's rule is the host's, so that restored scales are those that were left; a skipped step changes nothing."""
    held = buffers(card, WIDE, some_weights(WIDE))
    scales, t = Scales(card.device, WIDE, ROWS, held), fp8.tensors(WIDE)
    scales.start()
    rng, history = np.random.default_rng(5), np.zeros((t, fp8.HISTORY), np.float32)
    for step in range(20):
        largest = (2.0 ** rng.uniform(-30, 10, (t, fp8.CAST_BLOCKS))).astype(np.float32)
        largest[0] = 0.0  # a tensor of zeros
        applied = int(step % 4 != 2)
        card.device.write(held["fp8_largest"], largest)
        card.device.write(held["control"], np.array([0, 0, 0, applied, 0, 0, 0, 0, 0]))
        run(card, scales.end())
        if applied:
            history = np.concatenate([largest.max(axis=1)[:, None], history[:, :-1]], axis=1)
        assert np.array_equal(card.down(held["fp8_history"]), history)
        assert np.array_equal(card.down(held["fp8_scales"])[:t], fp8.scales(history, fp8.first_largest(WIDE, ROWS)))


@pytest.fixture(params=FORMS)
def product(request: pytest.FixtureRequest, card: Card, tmp_path, monkeypatch) -> Product:
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path))
    if request.param == "plain":
        return plain_product(card.device)
    return fast_product(CublasLt(card.device, "fp8", card.up(np.zeros((2, 32 << 20)), "uint8")))


@pytest.mark.parametrize(("n", "i", "o"), [(16, 32, 96), (77, 96, 384), (616, 384, 1152), (1025, 1536, 384)])
def test_products(card: Card, product: Product, n: int, i: int, o: int) -> None:
    """Against float64 of the same E4M3 numbers: a layout or a scale that the library takes otherwise than we mean."""
    rng = np.random.default_rng(n)
    x, w = encode(rng.normal(0, 60, (n, i))), encode(rng.normal(0, 60, (o, i)))
    old = rounded(rng.normal(0, 3, (n, o)), "bfloat16")
    scaled = [
        (card.up(codes, fp8.E4M3), card.up(np.array([back, 1 / back, 0, 0], np.float32), "float32"))
        for codes, back in ((x, 2.0**-6), (w, 2.0**-9))
    ]
    want = decode(x) @ decode(w).T * 2.0**-15
    for add in (None, card.up(old, "bfloat16")):
        y = card.empty("bfloat16", n, o)
        run(card, [product("a test", y, scaled[0], scaled[1], add)])
        close(card.down(y), want if add is None else want + old)


def test_an_op_takes_its_own_copies_and_scales(card: Card, product: Product) -> None:
    """Forward takes the transposed copy and the input's scale, backward the natural one and the gradient's."""
    weights, rng = some_weights(WIDE), np.random.default_rng(8)
    held = buffers(card, WIDE, weights)
    scales = Scales(card.device, WIDE, ROWS, held)
    history = (2.0 ** rng.uniform(0, 6, (fp8.tensors(WIDE), fp8.HISTORY))).astype(np.float32)
    scales.restore(fp8.to_state(history))
    scales.start()
    run(card, scales.weights())
    matrix = Fp8Matrix(PlainMatrix(card.device, "fp8"), scales, product)
    to = fp8.scales(history, (1.0, 1.0))[:, 1].astype(np.float64)
    for k, (name, (at, rows, columns, _)) in enumerate(fp8.matrices(WIDE).items()):
        w = weights[at : at + rows * columns].reshape(rows, columns)
        scale = 2.0 ** int(fp8.exponents(np.array([np.abs(w).max()], np.float32), 0)[0])
        low = decode(encode(w * scale)) / scale
        for a, want_of, call, i in (
            (rows, low, matrix.forward, 2 * k),
            (columns, low.T, matrix.input_gradient, 2 * k + 1),
        ):
            x = rounded(rng.normal(size=(ROWS * 77, a)), "bfloat16")
            y = card.empty("bfloat16", ROWS * 77, want_of.shape[1])
            X = card.up(x, "bfloat16")
            cast = scales.cast(X, scales.place(name, *x.shape, gradient=bool(i % 2)))
            run(card, [cast, *call("mlp", y, X, held["copy"].part(at, rows, columns))])
            want = decode(encode(x * to[i])) / to[i] @ want_of
            close(card.down(y), want)
            assert card.down(held["fp8_largest"])[i].max() == np.abs(x).max()
