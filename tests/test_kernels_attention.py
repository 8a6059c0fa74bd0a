"""Attention without a card: compiled for every card and width, launches that cover every row, arguments that fit."""

import pytest

from andrea.engine.cuda import attention, nvrtc
from andrea.engine.cuda.gate import signatures
from andrea.errors import EngineError

SHARED_OF_SMALLEST_CARD = 99 * 1024  # of one block, on sm_86, 89 and 120
SHARED_OF_HOPPER = 228 * 1024  # of a multiprocessor
SHARED_OF_A_BLOCK = 1024  # each block takes this for itself
KERNELS = {"k_attn_fwd", "k_attn_bwd_dq", "k_attn_bwd_dkdv"}
ALL = (
    [("bf16", arch) for arch in nvrtc.ARCHITECTURES] + [("fp32", arch) for arch in nvrtc.ARCHITECTURES] + [("fp16", 90)]
)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("precision", "arch"), ALL, ids=[f"{p}-sm{a}" for p, a in ALL])
@pytest.mark.parametrize("d", attention.HEAD_WIDTHS)
def test_compiles_without_spills(precision: str, arch: int, d: int) -> None:
    """The kernels live on the edge of the register file: a compiler or an edit that tips one over costs its speed."""
    options = {"ACT": nvrtc.ACT[precision], **attention.defines(d, precision, arch)}
    cubin = nvrtc.compile_file(attention.source(d, precision, arch), arch, options)
    assert set(cubin.resources) == KERNELS
    spilled = {kernel: used for kernel, used in cubin.resources.items() if used.spills or used.stack}
    assert not spilled, f"{precision}, {d} wide, sm_{arch}: {spilled}"


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("d", attention.HEAD_WIDTHS)
@pytest.mark.parametrize("t", [1, 127, 128, 129, 1024, 1025])
def test_blocks_cover_every_row_once(precision: str, arch: int, d: int, t: int) -> None:
    """The grid and the compiled rows come from one table; were they not equal, rows would be missed or met twice."""
    options = attention.defines(d, precision, arch)
    for launch in (*attention.forward(3, t, 5, d, precision, arch), *attention.backward(3, t, 5, d, precision, arch)):
        stem = attention.STEMS[launch.kernel]
        if attention.source(d, precision, arch) == "attention_hopper.cu":
            rows, at_once = attention.WGMMA_ROWS, int(options[f"{stem}_ROUND"])
            heads, blocks, rounds = launch.grid[0], launch.grid[1] // at_once, launch.grid[2]
            assert (heads, launch.grid[1] % at_once) == (5, 0)
            assert (rounds - 1) * at_once < 3 <= rounds * at_once
            assert at_once & (at_once - 1) == 0, "the kernel divides by it"
            assert launch.shared <= SHARED_OF_HOPPER // int(options[f"{stem}_BLOCKS"]) - SHARED_OF_A_BLOCK
        else:
            rows, blocks = int(options["ATTN_ROWS" if precision == "fp32" else f"{stem}_ROWS"]), launch.grid[1]
            assert (launch.grid[0], launch.grid[2]) == (15, 1)
            assert launch.shared <= SHARED_OF_SMALLEST_CARD
        assert (blocks - 1) * rows < t <= blocks * rows
        assert rows * blocks <= attention.scratch(3, t, 5, d)["attn_rows"] // (15 * 2 * 4)


@pytest.mark.parametrize(("precision", "arch"), [("bf16", 80), ("bf16", 90), ("fp32", 90)])
def test_arguments_are_the_kernels_own(precision: str, arch: int) -> None:
    """Launches name buffers by position; another order in the .cu file would read one array as another."""
    known = signatures(attention.source(64, precision, arch))
    launches = (*attention.forward(3, 8, 5, 64, precision, arch), *attention.backward(3, 8, 5, 64, precision, arch))
    assert {launch.kernel for launch in launches} == KERNELS
    for launch in launches:
        names = tuple(argument.name for argument in known[launch.kernel])
        assert tuple(name.removeprefix("attn_") for name in launch.args) == names


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("d", [32, 64])
def test_products_are_not_run_one_by_one(d: int) -> None:
    """An edit that lets ptxas serialize wgmma keeps every result and loses a third of the speed; it only warns."""
    options = {"ACT": nvrtc.ACT["bf16"], **attention.defines(d, "bf16", 90)}
    log = nvrtc.compile_file(attention.source(d, "bf16", 90), 90, options).log
    assert "Potential Performance Loss" not in log


@pytest.mark.parametrize("d", [16, 48, 96, 256])
def test_other_head_widths_are_refused(d: int) -> None:
    """A width without a kernel must not reach the compiler, whose message would say nothing to a user."""
    with pytest.raises(EngineError, match="32, 64, 128 wide"):
        attention.defines(d, "bf16", 90)
    with pytest.raises(EngineError, match="n_heads"):
        attention.forward(1, 8, 1, d, "fp32", 90)
