"""The model on the card: one list of op pairs bound to their buffers. Backward is that list walked in reverse.

Every LayerNorm adds to the gradient of the residual stream, from one of two buffers into the other. The matrix products
that write into the stream add the old stream themselves, so a residual sum costs no launch of its own.

In 16 bits the weight gradients run on a side stream. Each needs only what its op's backward is given, and is waited for
before its operands are written again: at the second LayerNorm from there.

With train.recompute a layer's forward runs again before its backward, in memory that the layers share. That comes one
LayerNorm too early for W_O's and W_Q, W_K, W_V's gradients of the layer above. A wait there would leave the card half empty;
instead what those read, att and LN1's y, has two places that the layers take in turn. W_1's and W_2's have been waited for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from andrea.engine.cuda import attention
from andrea.engine.cuda.blocks import (
    BLOCK,
    EMBED_BLOCK,
    LN_BLOCKS,
    LN_BLOCKS_FP8,
    WARP,
    embed_grids,
    loss_launch,
    norm_defines,
    norm_grid,
)
from andrea.engine.cuda.buffers import SLABS
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.fp8 import CAST_BLOCKS
from andrea.engine.cuda.matrix import Call, Matrix
from andrea.engine.cuda.matrix_fp8 import Scales
from andrea.engine.cuda.parameters import Parameters
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.weights import padded_vocabulary
from andrea.engine.kernels import LAYERNORM_EPS
from andrea.experiment import Shape


@dataclass(frozen=True)
class Op:
    """A pair, ready to be captured. `weights` are the weight gradients; they may run before or beside `backward`.

    `again` comes first in backward: it makes again what forward did not keep.
    """

    name: str
    forward: list[Call]
    backward: list[Call]
    weights: list[Call] = field(default_factory=list)
    again: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Batch:
    """One microbatch on the card: tokens (B, T + 1), and its positions sorted by token; see kernels/embed.cu."""

    tokens: Tensor
    order: Tensor
    first: Tensor


class Model:
    """Forward and backward for one microbatch of `rows` rows."""

    def __init__(
        self,
        device: Device,
        shape: Shape,
        precision: str,
        rows: int,
        matrix: Matrix,
        buffers: Mapping[str, Tensor],
        scales: Scales | None,
        recompute: bool,
    ) -> None:
        self._device, self._shape, self._precision, self._rows = device, shape, precision, rows
        self._matrix, self._buffers, self._scales, self._recompute = matrix, buffers, scales, recompute
        self._n, self._c = rows * shape.context, shape.d_model
        self._pack = 16 // buffers["dstream"].itemsize
        self._overlaps = "dstream_2" in buffers
        # the gradient behind an MLP, and the one behind attention
        self._dstream = (buffers["dstream"], buffers.get("dstream_2", buffers["dstream"]))
        self._attention_wide = buffers.get("attention_wide", buffers["wide"])
        self.parameters = Parameters(shape, precision, buffers)
        self.blocks = self._build_blocks()

    def forward(self, batch: Batch) -> list[Call]:
        """Everything up to the logits."""
        return [*self._embed(batch).forward, *(call for op in self.blocks for call in op.forward)]

    def losses(self, batch: Batch) -> list[Call]:
        """losses (N,) from the logits, which stay."""
        b, (t, v, p) = self._buffers, self._loss_sizes()
        kernel = self._kernel("loss", "k_loss_fwd")
        return [lambda: kernel((self._n,), BLOCK, b["losses"], b["loss_lse"], b["logits"], batch.tokens, t, v, p)]

    def backward(self, batch: Batch, share: float) -> list[Call]:
        """Losses, their mean times `share` into control, and all gradients added. After forward()."""
        clear = [lambda: self._device.clear(self._dstream[1])]
        blocks = [call for op in reversed(self.blocks) for call in self._op_backward(op)]
        join = [self._device.side.join] if self._overlaps else []
        return [*self._loss(batch, share), *clear, *blocks, *self._norm_params(), *join, *self._embed(batch).backward]

    def _op_backward(self, op: Op) -> list[Call]:
        """An op's backward, its weight gradients on the side where that is done."""
        if not self._overlaps:
            return [*op.again, *op.weights, *op.backward]
        side = self._device.side
        if "LN" in op.name:
            return [side.barrier, *op.backward]
        return [side.fork, *op.weights, *op.backward] if op.weights else [*op.again, *op.backward]

    def _build_blocks(self) -> list[Op]:
        ops: list[Op] = []
        for layer in range(self._shape.n_layers):
            block = [
                self._layernorm(f"{layer}.LN1", 2 * layer),
                self._qkv(layer),
                self._attention(layer),
                self._out(layer),
                self._layernorm(f"{layer}.LN2", 2 * layer + 1),
                *self._mlp(layer),
            ]
            if self._recompute and layer < self._shape.n_layers - 1:  # the last layer's activations are still there
                block[-1] = replace(block[-1], again=_made_again(block))
            ops += block
        return [*ops, self._layernorm("LN_f", 2 * self._shape.n_layers), self._head()]

    def _embed(self, batch: Batch) -> Op:
        b, p, c, t = self._buffers, self.parameters, self._c, self._shape.context
        forward, backward = (self._kernel("embed", name) for name in ("k_embed_fwd", "k_embed_bwd"))
        v = self._shape.vocab_size
        grid, back = embed_grids(self._rows, t, c, v, self._pack)
        wte, wpe, dwte, dwpe = p.value("wte"), p.value("wpe"), p.gradient("wte"), p.gradient("wpe")
        dx = self._dstream[0]
        return Op(
            "embed",
            [lambda: forward(grid, EMBED_BLOCK, b["x.0"], batch.tokens, wte, wpe, self._rows, t, t + 1, c)],
            [lambda: backward(back, BLOCK, dwte, dwpe, dx, batch.order, batch.first, v, self._rows, t, c)],
        )

    def _layernorm(self, name: str, i: int) -> Op:
        b, p, n, c = self._buffers, self.parameters, self._n, self._c
        x, y, mean, rstd = (b[f"{letter}.{i}"] for letter in ("x", "y", "mean", "rstd"))
        gamma, beta = p.value(name + ".gamma"), p.value(name + ".beta")
        value, gradient = self._norm_places(i)  # in precision fp8
        forward = self._norm_kernel("k_fp8_layernorm_fwd" if value else "k_layernorm_fwd")
        backward = self._norm_kernel("k_fp8_layernorm_bwd" if gradient else "k_layernorm_bwd")
        sums = b["ln_partial"].part(i * SLABS * 2 * c, SLABS, 2, c)
        dx, old, dy = self._dstream[i % 2], self._dstream[1 - i % 2], b["dbranch"]
        grid = norm_grid(n, c, self._pack, LN_BLOCKS_FP8 if value else LN_BLOCKS)
        return Op(
            name,
            [lambda: forward(grid, BLOCK, y, mean, rstd, x, gamma, beta, *value, n, c, LAYERNORM_EPS)],
            [lambda: backward((SLABS,), BLOCK, dx, sums, old, dy, x, gamma, mean, rstd, *gradient, n, c)],
        )

    def _norm_places(self, i: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Where LayerNorm `i` leaves its output and the stream's gradient in E4M3 too; empty where nobody reads that."""
        layer, second = divmod(i, 2)
        if not self._scales:
            return (), ()
        reader = f"{layer}.W_1" if second else f"{layer}.W_Q"
        value = self._scales.place(reader, self._n, self._c) if layer < self._shape.n_layers else ()
        if second or i == 0:
            return value, ()
        return value, self._scales.place(f"{layer - 1}.W_2", self._n, self._c, gradient=True)

    def _norm_params(self) -> list[Call]:
        """The parameter gradients of all LayerNorms, from what their backwards left."""
        b, c, norms = self._buffers, self._c, 2 * self._shape.n_layers + 1
        kernel, grid = self._norm_kernel("k_layernorm_bwd_params"), (-(-2 * c // WARP), norms)
        return [lambda: kernel(grid, BLOCK, b["gradients"], b["ln_where"], b["ln_partial"], SLABS, c)]

    def _norm_kernel(self, name: str) -> Kernel:
        return self._device.kernel("layernorm.cu", name, self._precision, norm_defines(self._c, self._pack))

    def _qkv(self, layer: int) -> Op:
        b, m, w = self._buffers, self._matrix, self.parameters.qkv(layer)
        x, dqkv = b[f"y.{2 * layer}"], self._attention_wide.part(0, self._n, 3 * self._c)
        return Op(
            f"{layer}.qkv",
            m.qkv(b[f"qkv.{layer}"], x, w),
            m.qkv_input_gradient(b["dbranch"], dqkv, w),
            m.qkv_weight_gradient(self.parameters.qkv_gradient(layer), x, dqkv),
        )

    def _attention(self, layer: int) -> Op:
        s, n, c = self._shape, self._n, self._c
        dims = (self._rows, s.context, s.n_heads, s.d_head)
        values: dict[str, Tensor | int] = {
            "qkv": self._buffers[f"qkv.{layer}"].reshape(n, 3, s.n_heads, s.d_head),
            "out": self._buffers[f"att.{layer}"].reshape(n, s.n_heads, s.d_head),
            "lse": self._buffers[f"lse.{layer}"],
            "dqkv": self._attention_wide.part(0, n, 3, s.n_heads, s.d_head),
            "dout": self._attention_wide.part(3 * n * c, n, s.n_heads, s.d_head),
            **{name: self._buffers[name] for name in attention.scratch(*dims)},
            **dict(zip("BTH", dims, strict=False)),
        }
        forward = attention.forward(*dims, self._precision, self._device.arch)
        backward = attention.backward(*dims, self._precision, self._device.arch)
        return Op(
            f"{layer}.attention",
            [self._attention_call(launch, values) for launch in forward],
            [self._attention_call(launch, values) for launch in backward],
        )

    def _attention_call(self, launch: attention.Launch, values: Mapping[str, Tensor | int]) -> Call:
        form = (self._shape.d_head, self._precision, self._device.arch)
        file, defines = attention.source(*form), attention.defines(*form)
        kernel = self._device.kernel(file, launch.kernel, self._precision, defines)
        arguments = [values[name] for name in launch.args]
        return lambda: kernel(launch.grid, launch.block, *arguments, shared=launch.shared)

    def _out(self, layer: int) -> Op:
        b, m, p, name = self._buffers, self._matrix, self.parameters, f"{layer}.W_O"
        x, w, dy = b[f"att.{layer}"], p.matrix(name), self._dstream[1]
        dx = self._attention_wide.part(3 * self._n * self._c, self._n, self._c)
        return Op(
            f"{layer}.out",
            m.forward("attn_out", b[f"x.{2 * layer + 1}"], x, w, b[f"x.{2 * layer}"]),
            m.input_gradient("attn_out", dx, dy, w),
            m.weight_gradient("attn_out", p.gradient(name), x, dy),
        )

    def _mlp(self, layer: int) -> list[Op]:
        b, m, p = self._buffers, self._matrix, self.parameters
        x, h, a, dh, dy = b[f"y.{2 * layer + 1}"], b[f"h.{layer}"], b["a"], b["wide"], self._dstream[0]
        w_1, w_2 = p.matrix(f"{layer}.W_1"), p.matrix(f"{layer}.W_2")
        dw_1, dw_2 = p.gradient(f"{layer}.W_1"), p.gradient(f"{layer}.W_2")
        stream, old, fused = b[f"x.{2 * layer + 2}"], b[f"x.{2 * layer + 1}"], m.fused
        return [
            Op(
                f"{layer}.up",
                [] if fused else m.forward("mlp", h, x, w_1),
                m.input_gradient("mlp", b["dbranch"], dh, w_1),
                # W_2's gradient stands here: it needs gelu(h), which gelu's backward has made again
                m.weight_gradient("mlp", dw_2, a, dy) + m.weight_gradient("mlp", dw_1, x, dh),
            ),
            # GELU, with the product before it, forward and backward, where the pair exists
            Op(f"{layer}.mlp", [fused.forward(h, a, x, w_1)], [fused.backward(dh, a, dy, w_2, h)])
            if fused
            else self._gelu(layer),
            Op(
                f"{layer}.down",
                m.forward("mlp", stream, a, w_2, old),
                [] if fused else m.input_gradient("mlp", dh, dy, w_2),
            ),
        ]

    def _gelu(self, layer: int) -> Op:
        b, size = self._buffers, self._n * 4 * self._c
        h, a, dh = (b[name].reshape(size) for name in (f"h.{layer}", "a", "wide"))
        forward, backward = (self._kernel("gelu", name) for name in ("k_gelu_fwd", "k_gelu_bwd"))
        grid = -(-size // (BLOCK * self._pack))
        value: tuple[Tensor, ...] = (a,)
        gradient: tuple[Tensor, ...] = ()
        if self._scales:
            forward, backward = (self._kernel("gelu", name) for name in ("k_fp8_gelu_fwd", "k_fp8_gelu_bwd"))
            value = self._scales.place(f"{layer}.W_2", size)
            grid, gradient = min(grid, CAST_BLOCKS), self._scales.place(f"{layer}.W_1", size, gradient=True)
        return Op(
            f"{layer}.gelu",
            [lambda: forward((grid,), BLOCK, *value, h, size)],
            [lambda: backward((grid,), BLOCK, dh, a, dh, h, *gradient, size)],
        )

    def _head(self) -> Op:
        b, m, p = self._buffers, self._matrix, self.parameters
        x, head = b[f"y.{2 * self._shape.n_layers}"], p.head()
        return Op(
            "head",
            m.head(b["logits"], x, head),
            m.head_input_gradient(b["dbranch"], b["logits"], head),
            m.head_weight_gradient(p.head_gradient(), b["logits"], x),
        )

    def _loss(self, batch: Batch, share: float) -> list[Call]:
        """Losses and, in place of the logits, their gradients."""
        b, (t, v, p), n = self._buffers, self._loss_sizes(), self._n
        block, defines = loss_launch(p, self._pack)
        fused = self._device.kernel("loss.cu", "k_loss_fused", self._precision, defines)
        mean = self._kernel("loss", "k_loss_mean")
        return [
            lambda: fused((n,), block, b["losses"], b["logits"], batch.tokens, b["control"], t, v, p),
            lambda: mean((1,), 1024, b["control"], b["losses"], n, share),
        ]

    def _loss_sizes(self) -> tuple[int, int, int]:
        return self._shape.context, self._shape.vocab_size, padded_vocabulary(self._shape)

    def _kernel(self, file: str, name: str) -> Kernel:
        return self._device.kernel(f"{file}.cu", name, self._precision)


def _made_again(block: list[Op]) -> list[Call]:
    """A layer's forward up to h: gelu's backward makes its own output again, and the layer's is kept."""
    *ops, up, gelu, _ = block
    return [call for op in (*ops, up if up.forward else gelu) for call in op.forward]
