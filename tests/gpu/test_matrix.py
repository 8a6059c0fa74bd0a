"""The matrix ops on the card, plain and by cuBLASLt, against NumPy in float64."""

import numpy as np
import pytest
from card import DTYPES, Card, check, rounded

from andrea.engine.cuda.cublaslt import CublasLt
from andrea.engine.cuda.matrix import FastMatrix, Matrix, PlainMatrix, QkvWeight

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FORMS = ("plain", "fast")


@pytest.fixture(params=[f"{form}-{precision}" for form in FORMS for precision in PRECISIONS])
def form(request: pytest.FixtureRequest, card: Card, tmp_path, monkeypatch) -> tuple[Matrix, str, str]:
    kind, precision = request.param.split("-")
    if kind == "plain":
        return PlainMatrix(card.device, precision), DTYPES.get(precision, "float32"), precision
    library = CublasLt(card.device, precision, card.up(np.zeros((2, 4 << 20)), "uint8"))
    return FastMatrix(library), DTYPES.get(precision, "float32"), precision


def run(card: Card, calls: list) -> None:
    for call in calls:
        call()
    card.device.wait()


def compare(card: Card, out, want: np.ndarray, dtype: str, precision: str, depth: float, what: str) -> None:
    """Rounding of inputs is shared; sums may differ by their order, and in tf32 products keep 10 bits."""
    size = np.abs(want).max()
    slack = {"fp32": 2e-6, "tf32": 2e-3, "bf16": 2e-6, "fp16": 2e-6}[precision] * depth
    low = rounded(want, dtype) + slack * size
    check(card.down(out), want, low, dtype, what)


@pytest.mark.parametrize(("n", "i", "o"), [(1, 32, 128), (77, 96, 384), (1025, 384, 96)])
def test_linear(card: Card, form: tuple[Matrix, str, str], n: int, i: int, o: int) -> None:
    """Forward with and without a residual, and both gradients; the weight's gradient is added to."""
    matrix, dtype, precision = form
    rng = np.random.default_rng(n)
    x, dy, old = (rounded(rng.normal(size=s), dtype) for s in ((n, i), (n, o), (n, o)))
    w, dw0 = rounded(rng.normal(size=(i, o)), dtype), rng.normal(size=(i, o)).astype(np.float32)
    X, DY, OLD, W = (card.up(a, dtype) for a in (x, dy, old, w))
    y, z, dx, dw = card.empty(dtype, n, o), card.empty(dtype, n, o), card.empty(dtype, n, i), card.up(dw0, "float32")
    run(card, matrix.forward("mlp", y, X, W))
    compare(card, y, x @ w, dtype, precision, 1, "x w")
    run(card, matrix.forward("mlp", z, X, W, OLD))
    compare(card, z, rounded(x @ w, dtype) + old, dtype, precision, 1, "x w + old")
    run(card, matrix.input_gradient("mlp", dx, DY, W))
    compare(card, dx, dy @ w.T, dtype, precision, 1, "dy w'")
    calls = matrix.weight_gradient("mlp", dw, X, DY)
    card.device.write(dw, dw0)  # choosing an algorithm ran some
    run(card, calls + calls)
    compare(card, dw, dw0 + 2 * (x.T @ dy), "float32", precision, 8, "dw + 2 x' dy")


@pytest.mark.parametrize(("n", "c"), [(3, 32), (77, 96), (1023, 384)])
def test_qkv(card: Card, form: tuple[Matrix, str, str], n: int, c: int) -> None:
    """Packed in 16 bits, three matrices in 32."""
    matrix, dtype, precision = form
    rng, packed = np.random.default_rng(n), dtype != "float32"
    x, dy, w = (rounded(rng.normal(size=s), dtype) for s in ((n, c), (n, 3 * c), (3, c, c)))
    side = np.concatenate(list(w), axis=1)
    weight = QkvWeight(card.up(side if packed else w, dtype), packed)
    X, DY, qkv, dx, dw = (
        card.up(x, dtype),
        card.up(dy, dtype),
        card.empty(dtype, n, 3 * c),
        card.empty(dtype, n, c),
        None,
    )
    run(card, matrix.qkv(qkv, X, weight))
    compare(card, qkv, x @ side, dtype, precision, 1, "qkv")
    run(card, matrix.qkv_input_gradient(dx, DY, weight))
    compare(card, dx, dy @ side.T, dtype, precision, 2, "dx")
    dw = card.up(np.zeros((3, c, c)), "float32")
    calls = matrix.qkv_weight_gradient(dw, X, DY)
    card.device.write(dw, np.ones((3, c, c)))
    run(card, calls)
    want = 1 + np.stack([x.T @ dy[:, z * c : (z + 1) * c] for z in range(3)])
    compare(card, dw, want, "float32", precision, 8, "dw")


@pytest.mark.parametrize(("n", "c", "v"), [(5, 32, 101), (77, 96, 2305), (130, 384, 8449)])
def test_head(card: Card, form: tuple[Matrix, str, str], n: int, c: int, v: int) -> None:
    """An odd vocabulary; padding of the head is zero, so it changes nothing."""
    matrix, dtype, precision = form
    rng, p = np.random.default_rng(v), -(-v // 128) * 128
    rows = v if dtype == "float32" else p
    x, head = rounded(rng.normal(size=(n, c)), dtype), np.zeros((rows, c))
    head[:v] = rounded(rng.normal(size=(v, c)), dtype)
    dlogits = np.zeros((n, p))
    dlogits[:, :v] = rounded(rng.normal(size=(n, v)), dtype)
    X, HEAD, logits, D = card.up(x, dtype), card.up(head, dtype), card.empty(dtype, n, p), card.up(dlogits, dtype)
    run(card, matrix.head(logits, X, HEAD))
    compare(card, card.up(card.down(logits)[:, :v], dtype), x @ head[:v].T, dtype, precision, 1, "logits")
    dx, dhead = card.empty(dtype, n, c), card.up(np.zeros((v, c)), "float32")
    run(card, matrix.head_input_gradient(dx, D, HEAD))
    compare(card, dx, dlogits[:, :v] @ head[:v], dtype, precision, 8, "dx")
    calls = matrix.head_weight_gradient(dhead, D, X)
    card.device.write(dhead, np.ones((v, c)))
    run(card, calls)
    compare(card, dhead, 1 + dlogits[:, :v].T @ x, "float32", precision, 8, "dhead")


def test_the_algorithm_is_chosen_once(card: Card, tmp_path, monkeypatch) -> None:
    """A second choice by timing could differ, and with it the bits of a resumed run."""
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path))
    workspace = card.up(np.zeros((2, 4 << 20)), "uint8")
    first = CublasLt(card.device, "bf16", workspace)
    w, x, y = (card.up(np.ones((256, 256)), "bfloat16") for _ in range(3))
    FastMatrix(first).forward("mlp", y, x, w)
    first.save()
    marked = dict.fromkeys(first.algorithms, next(iter(first.algorithms.values())))
    second = CublasLt(card.device, "bf16", workspace)
    FastMatrix(second).forward("mlp", y, x, w)
    assert second.algorithms == first.algorithms == marked
    third = CublasLt(card.device, "bf16", workspace)
    assert third.restore(first.identity, marked)
    assert not third.restore("another card", {})
