"""Sums, maxima and dot products of float32 rows in explicit vector lanes.

Without permission to reorder additions LLVM computes such a sum one by one; with it, a fresh compilation and a
cached one may differ in bits. So the order is written down here, in LLVM's own language: LANES lanes in UNROLL
accumulators, folded in halves, then the tail one by one. Rows are given by address: `x.ctypes.data + offset`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
UNROLL = 4
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
INDEX = ir.IntType(64)
LANE = ir.IntType(32)

Term = Callable[..., Any]  # (builder, accumulator, elements..., scalars...) -> new accumulator


def add(b: Any, x: Any, y: Any) -> Any:
    """x + y, scalars or vectors."""
    return b.fadd(x, y)


def larger(b: Any, x: Any, y: Any) -> Any:
    """The larger of two; a NaN in x is dropped, one in y is dropped too. The sums that follow keep it."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def multiply_add(b: Any, acc: Any, x: Any, y: Any) -> Any:
    """acc + x y, with one rounding where the processor can."""
    name = "llvm.fmuladd.f32" if acc.type == FLOAT else f"llvm.fmuladd.v{LANES}f32"
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(acc.type, [acc.type] * 3), name)
    return b.call(function, [x, y, acc])


def square_difference(b: Any, acc: Any, x: Any, centre: Any) -> Any:
    """acc + (x - centre)^2."""
    d = b.fsub(x, centre)
    return multiply_add(b, acc, d, d)


def weighted_difference(b: Any, acc: Any, x: Any, y: Any, z: Any, centre: Any) -> Any:
    """acc + x y (z - centre)."""
    return multiply_add(b, acc, b.fmul(x, y), b.fsub(z, centre))


def _row_function(arrays: int, scalars: int, start: float, term: Term, fold: Term) -> Any:
    """An intrinsic f(address..., scalar..., n) -> float32 that runs `term` over n elements and folds the lanes."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        rows = [b.inttoptr(address, FLOAT.as_pointer()) for address in args[:arrays]]
        return _reduce(b, rows, args[arrays:-1], args[-1], start, term, fold)

    returns = types.float32(*[types.uintp] * arrays, *[types.float32] * scalars, types.intp)
    # an intrinsic's parameters are read from its definition, so each count of them has one
    if (arrays, scalars) == (1, 0):
        return intrinsic(lambda _typing, _p, _n: (returns, generate))
    if (arrays, scalars) == (1, 1):
        return intrinsic(lambda _typing, _p, _s, _n: (returns, generate))
    if (arrays, scalars) == (2, 0):
        return intrinsic(lambda _typing, _p, _q, _n: (returns, generate))
    return intrinsic(lambda _typing, _p, _q, _r, _s, _n: (returns, generate))


def _reduce(b: Any, rows: list[Any], scalars: list[Any], n: Any, start: float, term: Term, fold: Term) -> Any:
    wide = [_broadcast(b, s) for s in scalars]
    accumulators = [
        cgutils.alloca_once_value(b, ir.Constant(VECTOR, [ir.Constant(FLOAT, start)] * LANES)) for _ in range(UNROLL)
    ]
    rounds, vectors = b.sdiv(n, INDEX(LANES * UNROLL)), b.sdiv(n, INDEX(LANES))
    with cgutils.for_range(b, rounds) as loop:
        first = b.mul(loop.index, INDEX(LANES * UNROLL))
        for i, accumulator in enumerate(accumulators):
            _accumulate(b, accumulator, term, rows, wide, b.add(first, INDEX(LANES * i)))
    with cgutils.for_range_slice(b, b.mul(rounds, INDEX(UNROLL)), vectors, INDEX(1), INDEX) as (i, _):
        _accumulate(b, accumulators[0], term, rows, wide, b.mul(i, INDEX(LANES)))
    folded = _fold_vectors(b, [b.load(accumulator, typ=VECTOR) for accumulator in accumulators], fold)
    total = cgutils.alloca_once_value(b, _fold_lanes(b, folded, fold))
    with cgutils.for_range_slice(b, b.mul(vectors, INDEX(LANES)), n, INDEX(1), INDEX) as (i, _):
        elements = [b.load(b.gep(row, [i]), typ=FLOAT) for row in rows]
        b.store(term(b, b.load(total, typ=FLOAT), *elements, *scalars), total)
    return b.load(total, typ=FLOAT)


def _accumulate(b: Any, accumulator: Any, term: Term, rows: list[Any], scalars: list[Any], i: Any) -> None:
    """One vector of each row, from element i on, into an accumulator."""
    elements = [_load_vector(b, row, i) for row in rows]
    b.store(term(b, b.load(accumulator, typ=VECTOR), *elements, *scalars), accumulator)


def _load_vector(b: Any, row: Any, i: Any) -> Any:
    vector = b.load(b.bitcast(b.gep(row, [i]), VECTOR.as_pointer()), typ=VECTOR)
    vector.align = 4  # rows start anywhere
    return vector


def _broadcast(b: Any, scalar: Any) -> Any:
    undefined = ir.Constant(VECTOR, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(LANE, LANES), [0] * LANES)
    return b.shuffle_vector(b.insert_element(undefined, scalar, LANE(0)), undefined, zeros)


def _fold_vectors(b: Any, vectors: list[Any], fold: Term) -> Any:
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [fold(b, x, y) for x, y in zip(vectors[:half], vectors[half:], strict=True)]
    return vectors[0]


def _fold_lanes(b: Any, vector: Any, fold: Term) -> Any:
    """Lane i with lane i + width / 2, until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        upper = [i + width if i < width else 0 for i in range(LANES)]
        mask = ir.Constant(ir.VectorType(LANE, LANES), upper)
        vector = fold(b, vector, b.shuffle_vector(vector, ir.Constant(VECTOR, ir.Undefined), mask))
    return b.extract_element(vector, LANE(0))


row_sum = _row_function(1, 0, 0.0, add, add)
row_max = _row_function(1, 0, float("-inf"), larger, larger)
row_dot = _row_function(2, 0, 0.0, multiply_add, add)
row_square_difference = _row_function(1, 1, 0.0, square_difference, add)
row_weighted_difference = _row_function(3, 1, 0.0, weighted_difference, add)
