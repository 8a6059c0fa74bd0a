"""Precision fp8 without a card: scales, the layout of the copies, the state, and the reference that the card is held to."""

import json
from pathlib import Path

import numpy as np
import pytest
from e4m3 import LARGEST, decode, encode

from andrea.engine.arena import plan_memory
from andrea.engine.cuda import fp8, matrix_fp8
from andrea.engine.cuda.blocks import LN_BLOCKS, LN_BLOCKS_FP8
from andrea.engine.cuda.buffers import SLABS
from andrea.engine.cuda.nvrtc import KERNELS
from andrea.engine.cuda.weights import copied_elements, copies
from andrea.errors import CheckpointError
from andrea.experiment import Shape, load

SHAPE = Shape(vocab_size=101, d_model=96, n_heads=3, n_layers=2, context=77, tied_head=True)
TOPS = np.array([1e-45, 1e-38, 3e-7, 0.02, 1.0, 1.75, 1.7500001, 1.99, 2.0, 447.9, 448, 449, 3e38], np.float32)


def test_the_reference_is_e4m3() -> None:
    """The card is judged by it: every code, halfway cases, both ends, zeros and NaN."""
    codes = np.delete(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)
    assert np.array_equal(encode(decode(codes)), codes)
    table = decode(np.arange(127, dtype=np.uint8))
    assert (table[0], table[1], table[8], table[126]) == (0, 2.0**-9, 2.0**-6, LARGEST)
    halves = encode((table[1:] + table[:-1]) / 2)
    assert (halves % 2 == 0).all()
    assert np.isnan(decode(np.array([0x7F, 0xFF], np.uint8))).all()
    found = encode(np.array([464, 1e30, np.inf, -np.inf, np.nan, -0.0, 1e-9, -1e-9]))
    assert found.tolist() == [126, 126, 126, 254, 127, 128, 0, 128]


@pytest.mark.parametrize("spare", [0, 1])
def test_a_scale_is_the_largest_power_of_two_that_fits(spare: int) -> None:
    """One too large cuts every step's largest numbers off; one too small loses a bit of the small ones."""
    e, limit = fp8.exponents(TOPS, spare), LARGEST / 2**spare
    inner = np.abs(e) < 100
    scaled = np.ldexp(TOPS.astype(np.float64), e)
    assert (scaled[inner] <= limit).all()
    assert (2 * scaled[inner] > limit).all()
    assert (np.abs(e) <= 100).all()
    assert fp8.exponents(np.zeros(1, np.float32), spare) == 100


def test_scales_follow_the_largest_of_the_history() -> None:
    """Not the latest; where nothing was seen yet, a guess for inputs (even) and one for gradients (odd)."""
    history = np.zeros((4, fp8.HISTORY), np.float32)
    history[2, 3], history[2, 0] = 7.0, 1.0
    history[3, 15] = 1e-6
    made = fp8.scales(history, (8.0, 2.0**-10))
    assert made[:, 1].tolist() == [2.0**4, 2.0**17, 2.0**5, 2.0**27]
    assert (made[:, 0] * made[:, 1] == 1).all()
    assert made.dtype == np.float32


def test_matrices_cover_the_copies_of_qkv_and_mlp_once() -> None:
    """A wrong offset would multiply by another layer's numbers, without an error."""
    table, places = fp8.matrices(SHAPE), copies(SHAPE)
    assert len(table) == 3 * SHAPE.n_layers
    source = np.zeros(copied_elements(SHAPE), np.int8)
    target = np.zeros(fp8.matrix_elements(SHAPE), np.int8)
    for begin, rows, columns, to in table.values():
        assert rows % 32 == columns % 32 == 0
        source[begin : begin + rows * columns] += 1
        target[to : to + rows * columns] += 1
    assert (target == 1).all()
    for name, place in places.items():
        rows = SHAPE.vocab_size if name == "wte" else 4 * 96 if name.endswith("W_2") else 96
        cells = source[place.offset + np.arange(rows)[:, None] * place.stride + np.arange(place.width)]
        assert (cells == (name != "wte" and not name.endswith("W_O"))).all(), name


def test_the_history_survives_json_bit_for_bit() -> None:
    """A resumed run that rounds a maximum may scale by another power of two, and then differs."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F800000, (fp8.tensors(SHAPE), fp8.HISTORY)).astype(np.uint32)
    bits[0, :3] = (0, 1, 0x7F7FFFFF)
    again = fp8.from_state(json.loads(json.dumps(fp8.to_state(bits.view(np.float32)))), SHAPE)
    assert np.array_equal(again.view(np.uint32), bits)


@pytest.mark.parametrize("value", [None, 3, "zz", "00", "0000803f" * 12, [0.0]])
def test_a_foreign_history_is_refused(value: object) -> None:
    """State files are data from outside."""
    with pytest.raises(CheckpointError, match="FP8 tensors"):
        fp8.from_state(value, SHAPE)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1.0])
def test_a_history_is_finite(number: float) -> None:
    """From NaN no scale follows."""
    history = np.ones((fp8.tensors(SHAPE), fp8.HISTORY), np.float32)
    history[3, 4] = number
    with pytest.raises(CheckpointError, match="finite"):
        fp8.from_state(fp8.to_state(history), SHAPE)


def test_the_plan_has_what_fp8_adds() -> None:
    """Two bytes a number of the matrices, an operand and a stream of gradients, and little else; bf16's plan stays as it was."""
    plain, ours = (plan_memory(load(Path(f"experiments/ANDREA-12M{name}-TRAIN.json"))) for name in ("", "-FP8"))
    names = {b.name for b in plain.buffers}
    more = [b for b in ours.buffers if b.name not in names]
    assert all(b.name.startswith("fp8_") for b in more)
    matrices, operands = 2 * 6 * 11 * 384**2, 8 * 1024 * (4 + 1) * 384
    assert matrices + operands < ours.total - plain.total < matrices + operands + 2**19


def test_every_block_has_a_place_for_its_maximum() -> None:
    """And each tensor's places begin at 16 bytes, or the gate refuses them."""
    assert fp8.CAST_BLOCKS % 4 == 0
    assert max(LN_BLOCKS, LN_BLOCKS_FP8, SLABS) <= fp8.CAST_BLOCKS


def test_constants_stand_the_same_on_both_sides() -> None:
    """A tile or a scale that Python computes otherwise than the kernel leaves out work, or changes a resumed run."""
    text = "".join((KERNELS / name).read_text(encoding="utf-8") for name in ("fp8.cuh", "fp8.cu"))
    sides = {
        "TOP": fp8._TOP,
        "WIDEST": fp8._WIDEST,
        "BYTES": matrix_fp8.CAST_ELEMENTS // matrix_fp8.BLOCK,
        "EDGE": matrix_fp8.EDGE,
        "LINEAR_COLS": matrix_fp8.LINEAR_COLS,
        "LINEAR_ROWS": matrix_fp8.LINEAR_ROWS,
    }
    for name, value in sides.items():
        assert f"{name} = {value}" in text, name
    assert f"scale_for(top, {fp8._SPARE})" in text
