"""Every kernel is compiled for every card, without one: no error, no spilled register, and every pair complete."""

import re

import pytest

from andrea.engine.cuda import blocks, buffers, generate, matrix, nvrtc
from andrea.engine.cuda.blocks import loss_launch, norm_defines
from andrea.engine.cuda.checks import WIDEST
from andrea.engine.cuda.gate import signatures
from andrea.engine.cuda.mlp_fused import FILE as MLP_FUSED
from andrea.errors import EngineError

FILES = sorted(
    path.name for path in nvrtc.KERNELS.glob("*.cu") if not path.stem.startswith("attention") and path.name != MLP_FUSED
)
PAIRS = {  # the names, and where they stand; k_residual_add is the one irregular name
    "embed.cu": ["k_embed_fwd", "k_embed_bwd"],
    "layernorm.cu": ["k_layernorm_fwd", "k_layernorm_bwd"],
    "attn_qkv.cu": ["k_attn_qkv_fwd", "k_attn_qkv_bwd"],
    "attn_out.cu": ["k_attn_out_fwd", "k_attn_out_bwd"],
    "mlp.cu": ["k_mlp_fwd", "k_mlp_bwd"],
    "gelu.cu": ["k_gelu_fwd", "k_gelu_bwd"],
    "residual.cu": ["k_residual_add", "k_residual_add_bwd"],
    "loss.cu": ["k_loss_fwd", "k_loss_bwd"],
    "head.cu": ["k_loss_head_fwd", "k_loss_head_bwd"],
    "optimizer.cu": ["k_grad_norm_partial", "k_grad_norm_final", "k_grad_scale", "k_adamw", "k_zero_grads"],
}


def assert_lean(cubin: nvrtc.Cubin, what: str) -> None:
    assert cubin.data[:4] == b"\x7fELF", what
    assert cubin.resources, what
    for kernel, used in cubin.resources.items():
        assert (used.spills, used.stack) == (0, 0), f"{what}: {kernel} spills"


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("arch", "act"), [(a, act) for a in nvrtc.ARCHITECTURES for act in (0, 1)] + [(86, 2), (90, 2)]
)
def test_layers_compile_without_spills(arch: int, act: int) -> None:
    """A kernel that only the developer's card can run, or that one card runs from memory, is found before release."""
    for file in FILES:
        cubin = nvrtc.compile_file(file, arch, {"ACT": act})
        assert_lean(cubin, f"{file} for sm_{arch}")
        assert set(cubin.resources) == set(signatures(file)), f"{file}: the gate must read every kernel's signature"


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("arch", [80, 90, 120])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_rows_in_registers_do_not_spill(arch: int, precision: str) -> None:
    """Rows of LayerNorm and of the logits: those of the shipped models leave few registers, the widest would lie in memory."""
    act = nvrtc.ACT[precision]
    pack = 8 if act else 4
    for width in (384, 768, 1536, WIDEST):
        cubin = nvrtc.compile_file("layernorm.cu", arch, {"ACT": act, **norm_defines(width, pack)})
        assert_lean(cubin, f"layernorm.cu, {precision}, {width} wide, for sm_{arch}")
    for stride in (2432, 8576, 20480):
        cubin = nvrtc.compile_file("loss.cu", arch, {"ACT": act, **loss_launch(stride, pack)[1]})
        assert_lean(cubin, f"loss.cu, {precision}, {stride} logits, for sm_{arch}")


def test_every_op_has_its_twin() -> None:
    """A forward kernel without its backward, or one under another name, would only show in training."""
    for file, names in PAIRS.items():
        assert set(names) <= set(signatures(file)), file
    for file in FILES:
        for name in signatures(file):
            if name.endswith("_fwd"):
                assert name.removesuffix("fwd") + "bwd" in signatures(file), f"{file}: {name} has no twin"


def test_every_file_states_its_contract() -> None:
    """Shapes, what is written, launch, repetition: the header is all that a reader has."""
    for path in nvrtc.KERNELS.glob("*.cu"):
        head = path.read_text(encoding="utf-8").split('#include "')[0]
        for word in ("Shapes", "Writes", "Launch", "Repeats"):
            assert re.search(rf"^// {word}\b", head, re.MULTILINE), f"{path.name}: no {word}"


def test_no_float_atomics() -> None:
    """Their order, and with it the last bits, changes from run to run."""
    for path in nvrtc.KERNELS.glob("*.cu*"):
        assert "atomic" not in re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8")), path.name


def test_constants_stand_the_same_on_both_sides() -> None:
    """A launch computed from another number than the kernel's would leave out part of its work."""
    values = {}
    for path in nvrtc.KERNELS.glob("*.cu*"):
        values |= dict(re.findall(r"(\w+) = (\d+)[,;]", path.read_text(encoding="utf-8")))
    assert int(values["NORM_CHUNK"]) == buffers.NORM_CHUNK
    assert int(values["TILE"]) == matrix.PLAIN_TILE
    assert (int(values["LANES"]), int(values["THREADS"])) == (generate.LINEAR_LANES, generate.BLOCK)
    assert int(values["ROWS"]) == buffers.PROMPT_ROWS
    assert (int(values["FWD_ROWS"]), int(values["TEAM"])) == (blocks.EMBED_ROWS, blocks.EMBED_TEAM)
    control = (nvrtc.KERNELS / "control.cuh").read_text(encoding="utf-8").split("struct Rates")[0]
    assert len(re.findall(r"^    (?:float|int) \w+;", control, re.MULTILINE)) == buffers.CONTROL_WORDS


@pytest.mark.usefixtures("compiler")
def test_a_compile_error_names_file_and_line(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is joined from several files; the message must point into the right one."""
    (tmp_path / "good.cuh").write_text("#pragma once\n\n\n")
    (tmp_path / "bad.cu").write_text('#include "good.cuh"\n\nextern "C" __global__ void k() { oops; }\n')
    monkeypatch.setattr(nvrtc, "source_text", lambda name, root=tmp_path, join=nvrtc.source_text: join(name, root))
    with pytest.raises(EngineError) as caught:
        nvrtc.compile_file("bad.cu", 90, {"ACT": 0})
    assert "kernels/bad.cu(3)" in str(caught.value)
    assert "oops" in str(caught.value)


@pytest.mark.usefixtures("compiler")
def test_the_cache_follows_every_included_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the prelude must not leave old code in use."""
    sources = tmp_path / "kernels"
    sources.mkdir()
    (sources / "k.cu").write_text('#include "p.cuh"\nextern "C" __global__ void k(float* x) { x[0] = ONE; }\n')
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "source_text", lambda name, root=sources, join=nvrtc.source_text: join(name, root))
    paths = []
    for text in ("#define ONE 1.0f\n", "#define ONE 2.0f\n", "#define ONE 1.0f\n"):
        (sources / "p.cuh").write_text(text)
        paths.append(nvrtc.cached_cubin("k.cu", 90, {"ACT": 0}))
    assert paths[0] == paths[2] != paths[1]
    assert nvrtc.cached_cubin("k.cu", 80, {"ACT": 0}) not in paths
    assert paths[0].read_bytes() == nvrtc.compile_file("k.cu", 90, {"ACT": 0}).data, "compiling must repeat"


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), 80), ((8, 6), 86), ((8, 7), 86), ((9, 0), 90), ((10, 3), 100), ((12, 1), 120)]
)
def test_a_card_gets_the_newest_code_that_it_runs(capability: tuple[int, int], arch: int) -> None:
    """Machine code runs within one major version only."""
    assert nvrtc.architecture(capability) == arch


@pytest.mark.parametrize("capability", [(7, 5), (6, 1), (11, 0), (13, 0)])
def test_an_unknown_card_is_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(EngineError, match="compute capability"):
        nvrtc.architecture(capability)
