"""Precision fp8's matrix ops: QKV and the MLP in E4M3, everything else by the ops that it wraps.

Whoever makes an operand leaves it in E4M3 too: LayerNorm and GELU, forward and backward (see model.py). Only the gradient of
attention is cast by a kernel of its own. Each operand is read by the very next product, so one buffer holds all in turn;
but for the stream's gradient, behind which train.recompute may run a forward.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from andrea.engine.cuda import fp8
from andrea.engine.cuda.blocks import BLOCK
from andrea.engine.cuda.cublaslt import CublasLt, Operand
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.matrix import Call, Matrix, QkvWeight
from andrea.engine.cuda.mlp_fused import FusedMlp
from andrea.engine.cuda.tensor import Tensor
from andrea.errors import EngineError
from andrea.experiment import Shape

CAST_ELEMENTS = 16 * BLOCK  # of a block of k_fp8_cast at a time
EDGE = 64  # of a tile of k_fp8_cast_weights
LINEAR_COLS, LINEAR_ROWS = 64, 4  # outputs of a block of k_fp8_linear

Scaled = tuple[Tensor, Tensor]  # a tensor of E4M3 numbers, and its Scale
Place = tuple[Tensor, Tensor, Tensor]  # the same with its maxima in between: where a kernel puts what it casts
Product = Callable[[str, Tensor, Scaled, Scaled, Tensor | None], Call]


class Scales:
    """The E4M3 copies of the weights, the histories and the scales: kept up to date on the card, saved, restored."""

    def __init__(self, device: Device, shape: Shape, rows: int, buffers: Mapping[str, Tensor]) -> None:
        _require_card(device)
        self._device, self._shape, self._buffers = device, shape, buffers
        self._first = fp8.first_largest(shape, rows)
        self._table = fp8.matrices(shape)
        device.write(buffers["fp8_matrices"], np.array(list(self._table.values()), np.int32))
        self._history = np.zeros(buffers["fp8_history"].shape, np.float32)
        self._names = {buffers["copy"].part(row[0], 1).address: name for name, row in self._table.items()}
        self._index = {name: i for i, name in enumerate(self._table)}

    def start(self) -> None:
        """Put the restored histories, or empty ones, on the card."""
        self._device.write(self._buffers["fp8_history"], self._history)
        scales = self._buffers["fp8_scales"].part(0, fp8.tensors(self._shape), fp8.SCALE_WORDS)
        self._device.write(scales, fp8.scales(self._history, self._first))

    def state(self) -> str:
        """The histories; the scales follow from them."""
        return fp8.to_state(self._device.read(self._buffers["fp8_history"]))

    def restore(self, value: object) -> None:
        """Take over what state() gave; before start()."""
        self._history = fp8.from_state(value, self._shape)

    def begin(self) -> list[Call]:
        """Before the first forward of a step: forget the maxima of the last step, or of an evaluation."""
        return [lambda: self._device.clear(self._buffers["fp8_largest"])]

    def end(self) -> list[Call]:
        """After AdamW: this step's maxima into the histories, and new scales, if the step was applied."""
        b, kernel = self._buffers, self._kernel("k_fp8_scales")
        n, sizes = fp8.tensors(self._shape), (fp8.HISTORY, fp8.CAST_BLOCKS)
        values = (b["fp8_scales"], b["fp8_history"], b["fp8_largest"], b["control"], *self._first, *sizes)
        return [lambda: kernel((n,), BLOCK, *values), *self.weights()]

    def weights(self) -> list[Call]:
        """The E4M3 copies from the 16-bit ones."""
        b, m, k = self._buffers, len(self._table), fp8.WEIGHT_PARTS
        largest, cast = self._kernel("k_fp8_weight_largest"), self._kernel("k_fp8_cast_weights")
        tiles = max(-(-rows // EDGE) * -(-columns // EDGE) for _, rows, columns, _ in self._table.values())
        targets = (b["fp8_natural"], b["fp8_transposed"], self.scale(fp8.tensors(self._shape)))
        sources = (b["fp8_weight_largest"], b["copy"], b["fp8_matrices"], k)
        return [
            lambda: largest((k, m), BLOCK, *sources),
            lambda: cast((tiles, m), BLOCK, *targets, *sources),
        ]

    def name(self, w: Tensor) -> str | None:
        """Which E4M3 matrix has its 16-bit copy at `w`; None for the matrices that stay in 16 bits."""
        return self._names.get(w.address)

    def weight(self, name: str, *, transposed: bool) -> Scaled:
        """The matrix (rows, columns), or transposed."""
        _, rows, columns, to = self._table[name]
        shape = (columns, rows) if transposed else (rows, columns)
        buffer = self._buffers["fp8_transposed" if transposed else "fp8_natural"]
        return buffer.part(to, *shape), self.scale(fp8.tensors(self._shape) + self._index[name])

    def place(self, name: str, *shape: int, gradient: bool = False) -> Place:
        """Where the input of matrix `name` lies in E4M3, or the gradient of its output."""
        i = 2 * self._index[name] + gradient
        buffer = self._buffers["fp8_stream" if gradient and name.endswith("W_2") else "fp8_operand"]
        largest = self._buffers["fp8_largest"].part(i * fp8.CAST_BLOCKS, fp8.CAST_BLOCKS)
        return buffer.part(0, *shape), largest, self.scale(i)

    def cast(self, x: Tensor, place: Place) -> Call:
        """`x` into its place, in E4M3."""
        kernel, grid = self._kernel("k_fp8_cast"), min(fp8.CAST_BLOCKS, -(-x.size // CAST_ELEMENTS))
        target, largest, scale = place[0].reshape(x.size), place[1], place[2]
        return lambda: kernel((grid,), BLOCK, target, largest, x.reshape(x.size), scale, x.size)

    def scale(self, i: int) -> Tensor:
        """struct Scale number `i`: of tensors first, then of matrices."""
        return self._buffers["fp8_scales"].part(i * fp8.SCALE_WORDS, fp8.SCALE_WORDS)

    def _kernel(self, name: str) -> Kernel:
        return self._device.kernel("fp8.cu", name, "fp8")


class Fp8Matrix:
    """Matrix, with the products of those weights that have an E4M3 copy in E4M3."""

    def __init__(self, rest: Matrix, scales: Scales, product: Product) -> None:
        self._scales, self._product = scales, product
        self.weight_gradient, self.qkv_weight_gradient = rest.weight_gradient, rest.qkv_weight_gradient
        self.head, self.head_input_gradient = rest.head, rest.head_input_gradient
        self.head_weight_gradient = rest.head_weight_gradient
        self._rest = rest
        self.fused: FusedMlp | None = None

    def forward(self, op: str, y: Tensor, x: Tensor, w: Tensor, residual: Tensor | None = None) -> list[Call]:
        name = self._scales.name(w)
        if name is None:
            return self._rest.forward(op, y, x, w, residual)
        operand, _, scale = self._scales.place(name, *x.shape)
        weight = self._scales.weight(name, transposed=True)
        return [self._product(name, y, (operand, scale), weight, residual)]

    def input_gradient(self, op: str, dx: Tensor, dy: Tensor, w: Tensor) -> list[Call]:
        name = self._scales.name(w)
        if name is None:
            return self._rest.input_gradient(op, dx, dy, w)
        operand, _, scale = self._scales.place(name, *dy.shape, gradient=True)
        weight = self._scales.weight(name, transposed=False)
        return [self._product(f"{name}'s input gradient", dx, (operand, scale), weight, None)]

    def qkv(self, qkv: Tensor, x: Tensor, w: QkvWeight) -> list[Call]:
        return self.forward("attn_qkv", qkv, x, w.tensor)

    def qkv_input_gradient(self, dx: Tensor, dqkv: Tensor, w: QkvWeight) -> list[Call]:
        name = self._scales.name(w.tensor)
        assert name is not None, "the packed matrices have an E4M3 copy"
        cast = self._scales.cast(dqkv, self._scales.place(name, *dqkv.shape, gradient=True))
        return [cast, *self.input_gradient("attn_qkv", dx, dqkv, w.tensor)]


def fast_product(library: CublasLt) -> Product:
    """y (N, O) = x (N, I) times w (O, I) transposed, or that added to another (N, O); by cuBLASLt."""

    def bind(name: str, y: Tensor, x: Scaled, w: Scaled, add: Tensor | None) -> Call:
        a, b = _operand(x[0], x[1]), replace(_operand(w[0], w[1]), transposed=True)
        other = None if add is None else _operand(add)
        return library.product(_operand(y), a, b, other, name=f"the FP8 product of {name}")

    return bind


def plain_product(device: Device) -> Product:
    """The same by the hand-written kernel."""
    kernel = device.kernel("fp8.cu", "k_fp8_linear", "fp8")

    def bind(name: str, y: Tensor, x: Scaled, w: Scaled, add: Tensor | None) -> Call:  # noqa: ARG001
        (n, i), o = x[0].shape, y.shape[1]
        grid, old = (-(-o // LINEAR_COLS), -(-n // LINEAR_ROWS)), y if add is None else add
        sizes = (n, i, o, int(add is not None))
        return lambda: kernel(grid, BLOCK, y, x[0], w[0], old, x[1], w[1], *sizes)

    return bind


def _operand(t: Tensor, scale: Tensor | None = None) -> Operand:
    return Operand(t, t.shape[0], t.shape[1], t.shape[1], scale=scale.address if scale else 0)


def _require_card(device: Device) -> None:
    if device.capability < fp8.CAPABILITY:
        raise EngineError(
            '"precision": "fp8" needs a card of compute capability 8.9 or later (Ada, Hopper or newer)',
            got=f"{device.name}, {device.capability[0]}.{device.capability[1]}",
            fix='write "precision": "bf16" in the train section',
        )
