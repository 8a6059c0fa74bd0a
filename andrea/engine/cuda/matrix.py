"""The matrix ops, bound to their operands: by cuBLASLt, or by the plain kernels of the same ops.

Both give a list of calls ready to be captured. Letters as in kernels/README.md. A residual sum is part of the product in
cuBLASLt (it adds the old stream while it writes the new one) and a kernel of its own in the plain form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from andrea.engine.cuda.cublaslt import CublasLt, Operand
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.mlp_fused import FusedMlp
from andrea.engine.cuda.tensor import Tensor

Call = Callable[[], None]
PLAIN_TILE, PLAIN_BLOCK = 64, 256


@dataclass(frozen=True)
class QkvWeight:
    """The three matrices: one (C, 3C) when packed, else three (C, C) one after the other."""

    tensor: Tensor
    packed: bool

    def strides(self, c: int) -> tuple[int, int]:
        """Elements from matrix to matrix, and from row to row."""
        return (c, 3 * c) if self.packed else (c * c, c)


class Matrix(Protocol):
    """x (N, I), y (N, O), w (I, O); weight gradients are added to, everything else is assigned.

    `fused`: the MLP's products around GELU with GELU in them, where there are such.
    """

    fused: FusedMlp | None

    def forward(self, op: str, y: Tensor, x: Tensor, w: Tensor, residual: Tensor | None = None) -> list[Call]:
        """y = x w, or residual + x w."""
        ...

    def input_gradient(self, op: str, dx: Tensor, dy: Tensor, w: Tensor) -> list[Call]:
        """dx = dy w'."""
        ...

    def weight_gradient(self, op: str, dw: Tensor, x: Tensor, dy: Tensor) -> list[Call]:
        """dw += x' dy."""
        ...

    def qkv(self, qkv: Tensor, x: Tensor, w: QkvWeight) -> list[Call]:
        """qkv (N, 3C) from x (N, C)."""
        ...

    def qkv_input_gradient(self, dx: Tensor, dqkv: Tensor, w: QkvWeight) -> list[Call]:
        """dx (N, C)."""
        ...

    def qkv_weight_gradient(self, dw: Tensor, x: Tensor, dqkv: Tensor) -> list[Call]:
        """dw (3, C, C) float32, added to."""
        ...

    def head(self, logits: Tensor, x: Tensor, head: Tensor) -> list[Call]:
        """logits (N, P) from head (V or P, C)."""
        ...

    def head_input_gradient(self, dx: Tensor, dlogits: Tensor, head: Tensor) -> list[Call]:
        """dx (N, C)."""
        ...

    def head_weight_gradient(self, dhead: Tensor, dlogits: Tensor, x: Tensor) -> list[Call]:
        """dhead (V, C) float32, added to."""
        ...


def _whole(t: Tensor, *, transposed: bool = False) -> Operand:
    return Operand(t, t.shape[0], t.shape[1], t.shape[1], transposed)


class FastMatrix:
    """By cuBLASLt. Every algorithm is chosen when the call is bound. `side`: weight gradients run on the side stream."""

    def __init__(self, library: CublasLt, *, side: bool = False, fused: FusedMlp | None = None) -> None:
        self._product, self._side, self.fused = library.product, side, fused

    def forward(self, op: str, y: Tensor, x: Tensor, w: Tensor, residual: Tensor | None = None) -> list[Call]:  # noqa: ARG002
        add = None if residual is None else _whole(residual)
        return [self._product(_whole(y), _whole(x), _whole(w), add)]

    def input_gradient(self, op: str, dx: Tensor, dy: Tensor, w: Tensor) -> list[Call]:  # noqa: ARG002
        return [self._product(_whole(dx), _whole(dy), _whole(w, transposed=True))]

    def weight_gradient(self, op: str, dw: Tensor, x: Tensor, dy: Tensor) -> list[Call]:  # noqa: ARG002
        return [self._product(_whole(dw), _whole(x, transposed=True), _whole(dy), _whole(dw), side=self._side)]

    def qkv(self, qkv: Tensor, x: Tensor, w: QkvWeight) -> list[Call]:
        if w.packed:
            return self.forward("attn_qkv", qkv, x, w.tensor)
        n, c = x.shape
        out = Operand(qkv, n, c, 3 * c, step=c)
        matrices = Operand(w.tensor, c, c, c, step=c * c)
        return [self._product(out, _whole(x), matrices, batch=3)]

    def qkv_input_gradient(self, dx: Tensor, dqkv: Tensor, w: QkvWeight) -> list[Call]:
        if w.packed:
            return self.input_gradient("attn_qkv", dx, dqkv, w.tensor)
        n, c = dx.shape
        calls, target = [], _whole(dx)
        for z in range(3):
            dy = Operand(dqkv.part(z * c, n * 3 * c - z * c), n, c, 3 * c)
            matrix = Operand(w.tensor.part(z * c * c, c, c), c, c, c, transposed=True)
            calls.append(self._product(target, dy, matrix, target if z else None))
        return calls

    def qkv_weight_gradient(self, dw: Tensor, x: Tensor, dqkv: Tensor) -> list[Call]:
        n, c = x.shape
        out, dy = Operand(dw, c, c, c, step=c * c), Operand(dqkv, n, c, 3 * c, step=c)
        return [self._product(out, _whole(x, transposed=True), dy, out, batch=3, side=self._side)]

    def head(self, logits: Tensor, x: Tensor, head: Tensor) -> list[Call]:
        out = Operand(logits, logits.shape[0], head.shape[0], logits.shape[1])
        return [self._product(out, _whole(x), _whole(head, transposed=True))]

    def head_input_gradient(self, dx: Tensor, dlogits: Tensor, head: Tensor) -> list[Call]:
        dy = Operand(dlogits, dlogits.shape[0], head.shape[0], dlogits.shape[1])
        return [self._product(_whole(dx), dy, _whole(head))]

    def head_weight_gradient(self, dhead: Tensor, dlogits: Tensor, x: Tensor) -> list[Call]:
        dy = Operand(dlogits, dlogits.shape[0], dhead.shape[0], dlogits.shape[1], transposed=True)
        return [self._product(_whole(dhead), dy, _whole(x), _whole(dhead), side=self._side)]


class PlainMatrix:
    """By the hand-written kernels: any shape, readable, slow."""

    def __init__(self, device: Device, precision: str) -> None:
        self._device, self._precision = device, precision
        self.fused: FusedMlp | None = None

    def forward(self, op: str, y: Tensor, x: Tensor, w: Tensor, residual: Tensor | None = None) -> list[Call]:
        calls = [self._linear(op, "fwd", y.shape[1], y.shape[0], y, x, w, w.shape)]
        if residual is not None:
            pack = 16 // y.itemsize
            add, size = self._kernel("residual", "k_residual_add"), y.size
            flat = [t.reshape(size) for t in (y, residual, y)]
            calls.append(lambda: add((_up(size, 256 * pack),), 256, *flat, size))
        return calls

    def input_gradient(self, op: str, dx: Tensor, dy: Tensor, w: Tensor) -> list[Call]:
        return [self._linear(op, "bwd", dx.shape[1], dx.shape[0], dx, dy, w, w.shape)]

    def weight_gradient(self, op: str, dw: Tensor, x: Tensor, dy: Tensor) -> list[Call]:
        return [self._linear(op, "bwd_weight", dw.shape[1], dw.shape[0], dw, x, dy, dw.shape)]

    def qkv(self, qkv: Tensor, x: Tensor, w: QkvWeight) -> list[Call]:
        n, c = x.shape
        return [self._bind("attn_qkv", "k_attn_qkv_fwd", (c, n, 3), qkv, x, w.tensor, n, c, *w.strides(c))]

    def qkv_input_gradient(self, dx: Tensor, dqkv: Tensor, w: QkvWeight) -> list[Call]:
        n, c = dx.shape
        return [self._bind("attn_qkv", "k_attn_qkv_bwd", (c, n, 1), dx, dqkv, w.tensor, n, c, *w.strides(c))]

    def qkv_weight_gradient(self, dw: Tensor, x: Tensor, dqkv: Tensor) -> list[Call]:
        n, c = x.shape
        return [self._bind("attn_qkv", "k_attn_qkv_bwd_weight", (c, c, 3), dw, x, dqkv, n, c)]

    def head(self, logits: Tensor, x: Tensor, head: Tensor) -> list[Call]:
        (n, c), v = x.shape, head.shape[0]
        return [self._bind("head", "k_loss_head_fwd", (v, n, 1), logits, x, head, n, c, v, logits.shape[1])]

    def head_input_gradient(self, dx: Tensor, dlogits: Tensor, head: Tensor) -> list[Call]:
        (n, c), v = dx.shape, head.shape[0]
        return [self._bind("head", "k_loss_head_bwd", (c, n, 1), dx, dlogits, head, n, c, v, dlogits.shape[1])]

    def head_weight_gradient(self, dhead: Tensor, dlogits: Tensor, x: Tensor) -> list[Call]:
        (n, c), v = x.shape, dhead.shape[0]
        return [self._bind("head", "k_loss_head_bwd_weight", (c, v, 1), dhead, dlogits, x, n, c, v, dlogits.shape[1])]

    def _linear(
        self, op: str, form: str, columns: int, rows: int, out: Tensor, a: Tensor, b: Tensor, weight: tuple[int, ...]
    ) -> Call:
        """attn_out has one width C, mlp has (I, O)."""
        sizes = (weight[0],) if op == "attn_out" else weight
        n = a.shape[0]
        return self._bind(op, f"k_{op}_{form}", (columns, rows, 1), out, a, b, n, *sizes)

    def _bind(self, file: str, name: str, extent: tuple[int, int, int], *values: Tensor | int) -> Call:
        kernel, (columns, rows, parts) = self._kernel(file, name), extent
        grid = (_up(columns, PLAIN_TILE), _up(rows, PLAIN_TILE), parts)
        return lambda: kernel(grid, PLAIN_BLOCK, *values)

    def _kernel(self, file: str, name: str) -> Kernel:
        return self._device.kernel(f"{file}.cu", name, self._precision)


def _up(a: int, b: int) -> int:
    return -(-a // b)
