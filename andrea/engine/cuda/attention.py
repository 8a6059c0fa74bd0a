"""What the attention kernels are launched with: files, compile options, grids, scratch. The files' headers are the contract.

Backward is two launches: the first makes dq and keeps two numbers a row, the second makes dk and dv from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from andrea.errors import EngineError

FLOAT32 = 4
BLOCK = 128
ROWS_PADDING = 128  # positions of a head are rounded up to this in the scratch
HEAD_WIDTHS = (32, 64, 128)


@dataclass(frozen=True)
class Launch:
    """One launch: `args` are names of buffers and sizes, `shared` is dynamic shared memory in bytes."""

    kernel: str
    args: tuple[str, ...]
    grid: tuple[int, int, int]
    block: int
    shared: int


@dataclass(frozen=True)
class Tile:
    """Rows of a block (queries, or keys for dk and dv), and the blocks that must fit a multiprocessor: it bounds registers."""

    rows: int
    blocks: int


@dataclass(frozen=True)
class Ring:
    """For wgmma: blocks that must fit a multiprocessor, pairs of tiles in shared memory, rows of the batch that run together."""

    blocks: int
    stages: int
    batch: int


FORWARD: Final = "k_attn_fwd"
DQ: Final = "k_attn_bwd_dq"
DKDV: Final = "k_attn_bwd_dkdv"
ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    FORWARD: ("out", "lse", "qkv", "T", "H"),
    DQ: ("dqkv", "attn_rows", "dout", "qkv", "out", "lse", "T", "H"),
    DKDV: ("dqkv", "attn_rows", "dout", "qkv", "T", "H"),
}
STEMS: Final[Mapping[str, str]] = {FORWARD: "ATTN_FWD", DQ: "ATTN_DQ", DKDV: "ATTN_DKDV"}

# 16 bits by mma.sync, by head width. No number of this table or the next changes a bit of a result.
TILES: Final[Mapping[int, Mapping[str, Tile]]] = {
    32: {FORWARD: Tile(64, 4), DQ: Tile(128, 3), DKDV: Tile(128, 3)},
    64: {FORWARD: Tile(128, 2), DQ: Tile(128, 2), DKDV: Tile(64, 2)},
    128: {FORWARD: Tile(64, 2), DQ: Tile(64, 2), DKDV: Tile(64, 2)},
}
# 16 bits by wgmma, which only sm_90 has; it leaves head width 128 to mma.sync.
WGMMA_ARCH: Final = 90
WGMMA_ROWS: Final = 64  # of a block and of a streamed tile
RINGS: Final[Mapping[int, Mapping[str, Ring]]] = {
    32: {FORWARD: Ring(5, 4, 8), DQ: Ring(4, 4, 8), DKDV: Ring(3, 4, 8)},
    64: {FORWARD: Ring(4, 3, 4), DQ: Ring(3, 3, 1), DKDV: Ring(2, 4, 2)},
}
ROWS_FP32: Final[Mapping[int, int]] = {32: 64, 64: 64, 128: 32}
WIDE_TILES_FP32: Final[Mapping[str, int]] = {FORWARD: 3, DQ: 4, DKDV: 4}  # (rows, D) tiles in shared memory


def source(d_head: int, precision: str, arch: int) -> str:
    """The kernel file: tensor cores for 16 bits, plain float32 otherwise (tf32 too: no TF32 attention exists)."""
    if not _is_16_bit(precision):
        return "attention_fp32.cu"
    return "attention_hopper.cu" if _is_wgmma(d_head, arch) else "attention.cu"


def defines(d_head: int, precision: str, arch: int) -> dict[str, int | str]:
    """Compile options besides ACT. EngineError for a head width that no kernel supports."""
    _require_width(d_head)
    if not _is_16_bit(precision):
        return {"D": d_head, "ATTN_ROWS": ROWS_FP32[d_head]}
    options: dict[str, int | str] = {"D": d_head}
    for kernel, stem in STEMS.items():
        if _is_wgmma(d_head, arch):
            ring = RINGS[d_head][kernel]
            options |= {f"{stem}_BLOCKS": ring.blocks, f"{stem}_STAGES": ring.stages, f"{stem}_ROUND": ring.batch}
        else:
            tile = TILES[d_head][kernel]
            options |= {f"{stem}_BLOCKS": tile.blocks, f"{stem}_ROWS": tile.rows}
    return options


def forward(b: int, t: int, h: int, d: int, precision: str, arch: int) -> tuple[Launch, ...]:
    """The launches that assign out and lse from qkv."""
    return (_launch(FORWARD, b, t, h, d, precision, arch),)


def backward(b: int, t: int, h: int, d: int, precision: str, arch: int) -> tuple[Launch, ...]:
    """The launches that assign dqkv, in their order."""
    return tuple(_launch(kernel, b, t, h, d, precision, arch) for kernel in (DQ, DKDV))


def scratch(b: int, t: int, h: int, d: int) -> dict[str, int]:
    """Bytes of each scratch buffer, float32; needed within one backward only."""
    _require_width(d)
    return {"attn_rows": b * h * _blocks(t, ROWS_PADDING) * ROWS_PADDING * 2 * FLOAT32}


def _launch(kernel: str, b: int, t: int, h: int, d: int, precision: str, arch: int) -> Launch:
    _require_width(d)
    if not _is_16_bit(precision):
        rows = ROWS_FP32[d]
        shared = FLOAT32 * (WIDE_TILES_FP32[kernel] * rows * (d + 4) + rows * (rows + 4) + 2 * rows)
    elif _is_wgmma(d, arch):
        return _ring_launch(kernel, b, t, h, d)
    else:
        rows, shared = TILES[d][kernel].rows, 0
    return Launch(kernel, ARGUMENTS[kernel], (b * h, _blocks(t, rows), 1), BLOCK, shared)


def _ring_launch(kernel: str, b: int, t: int, h: int, d: int) -> Launch:
    ring = RINGS[d][kernel]
    grid = (h, _blocks(t, WGMMA_ROWS) * ring.batch, _blocks(b, ring.batch))
    tiles = 2 * ring.stages + (1 if kernel == FORWARD else 2)
    statistics = 2 * FLOAT32 * WGMMA_ROWS * ring.stages if kernel == DKDV else 0
    *buffers, _, _ = ARGUMENTS[kernel]
    return Launch(kernel, (*buffers, "B", "T", "H"), grid, BLOCK, tiles * WGMMA_ROWS * d * 2 + statistics)


def _is_wgmma(d: int, arch: int) -> bool:
    return arch == WGMMA_ARCH and d in RINGS


def _is_16_bit(precision: str) -> bool:
    return precision in ("bf16", "fp16", "fp8")


def _blocks(t: int, rows: int) -> int:
    return -(-t // rows)


def _require_width(d: int) -> None:
    if d not in HEAD_WIDTHS:
        raise EngineError(
            f"a head must be {', '.join(map(str, HEAD_WIDTHS))} wide for the CUDA engine",
            got=d,
            fix='choose model.n_heads so that model.d_model / model.n_heads is one of them, or "engine": "cpu"',
        )
