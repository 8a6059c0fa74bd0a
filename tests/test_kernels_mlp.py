"""The MLP's fused products without a card: compiled for Hopper, sizes that agree, arguments that fit."""

import numpy as np
import pytest
from test_cuda_binding import PaperDevice, PaperStream

from andrea.engine.cuda import nvrtc
from andrea.engine.cuda.gate import signatures
from andrea.engine.cuda.mlp_fused import ARCH, DEFINES, EDGE, FILE, MAPS, PRECISIONS, FusedMlp, is_fused
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.tensor_map import WORDS

KERNELS = {"k_mlp_gelu_fwd", "k_mlp_gelu_bwd"}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiles_without_spills(precision: str) -> None:
    """Products live on the edge of the register file; the file itself checks the shared memory that it is launched with."""
    cubin = nvrtc.compile_file(FILE, ARCH, {"ACT": nvrtc.ACT[precision], **DEFINES})
    assert set(cubin.resources) == KERNELS == set(signatures(FILE))
    spilled = {kernel: used for kernel, used in cubin.resources.items() if used.spills or used.stack}
    assert not spilled, f"{precision}: {spilled}"


@pytest.mark.parametrize(
    ("arch", "precision", "width", "fused"),
    [
        *((90, "bf16", 384, True), (90, "fp16", 64, True), (90, "fp8", 384, False), (90, "fp32", 384, False)),
        *((80, "bf16", 384, False), (100, "bf16", 384, False), (120, "fp16", 768, False), (90, "bf16", 96, False)),
    ],
)
def test_where_it_applies(arch: int, precision: str, width: int, fused: bool) -> None:
    """Another card, or a width without whole tiles, must keep the path of before."""
    assert is_fused(arch, precision, width) is fused
    assert not fused or 4 * width % EDGE == 0


def test_every_launch_has_its_own_maps() -> None:
    """A layer that took another's maps would read that layer's weights."""
    device, seen = PaperDevice(), []
    device.stream = PaperStream()  # type: ignore[assignment]
    device.write = lambda target, values: seen.append((target.address, values.shape))  # type: ignore[method-assign]
    maps = Tensor(1 << 20, (4, MAPS, WORDS), "int32")
    fused = FusedMlp(device, "bf16", maps)  # type: ignore[arg-type]
    x, w_1, w_2, h = (Tensor(1 << 24, s, "bfloat16") for s in ((100, 64), (64, 256), (256, 64), (100, 256)))
    for _ in range(2):
        fused.forward(h, h, x, w_1)()
        fused.backward(h, h, x, w_2, h)()
    assert seen == [(maps.address + i * MAPS * WORDS * 4, (MAPS, WORDS)) for i in range(4)]
    assert device.launches == dict.fromkeys(KERNELS, 2)
    with pytest.raises(AssertionError, match="part"):
        fused.forward(h, h, x, w_1)
    assert np.zeros(WORDS, np.int32).nbytes == 128
