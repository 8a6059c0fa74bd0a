"""The model as one list of ops, bound to their buffers. Backward is that list walked in reverse.

The gradient of the residual stream lives in one buffer, dstream: every LayerNorm adds into it, and a residual sum
hands it on as it is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from andrea.engine.kernels import Array, Kernels, attention_work
from andrea.engine.layout import MLP_RATIO
from andrea.experiment import Shape


@dataclass(frozen=True)
class Op:
    """A pair, ready to call."""

    name: str
    forward: Callable[[], None]
    backward: Callable[[], None]


class Program:
    """Forward and backward for `rows` rows of `length` tokens. Put tokens into `ids` and `targets` first.

    weights, grads: views by parameter name. buffers: this partition's arrays by name, at least large enough.
    scale: what each token's loss counts for in the gradient, 1 / tokens of the microbatch.
    """

    def __init__(
        self,
        shape: Shape,
        kernels: Kernels,
        weights: Mapping[str, Array],
        grads: Mapping[str, Array],
        buffers: Mapping[str, Array],
        rows: int,
        length: int,
        scale: float,
    ) -> None:
        self.shape, self.rows, self.length, self._scale = shape, rows, length, scale
        self._k, self._w, self._dw, self._buffers = kernels, weights, grads, buffers
        self.ids = self._cut("ids", rows, length)
        self.targets = self._cut("targets", rows * length)
        self.losses = self._cut("losses", rows * length)
        self._dstream = self._matrix("dstream")
        self.ops = self._build()

    def forward(self) -> None:
        """Losses of every token, in nats, and what backward needs."""
        for op in self.ops:
            op.forward()

    def hidden(self) -> None:
        """Forward without head and loss."""
        for op in self.ops[:-1]:
            op.forward()

    def backward(self) -> None:
        """Add into the gradients."""
        self._dstream[:] = 0
        for op in reversed(self.ops):
            op.backward()

    def _cut(self, name: str, *dims: int) -> Array:
        """The first elements of a buffer, contiguous, in the shape of this program's rows."""
        view: Array = self._buffers[name].reshape(-1)[: math.prod(dims)].reshape(dims)
        return view

    def _matrix(self, name: str) -> Array:
        return self._cut(name, self.rows * self.length, self.shape.d_model)

    def _sequences(self, name: str) -> Array:
        return self._cut(name, self.rows, self.length, self.shape.d_model)

    def _build(self) -> tuple[Op, ...]:
        ops = [self._embed()]
        for layer in range(self.shape.n_layers):
            ops += [
                self._layernorm(f"{layer}.LN1", 2 * layer),
                self._qkv(layer),
                self._attention(layer),
                self._out(layer),
                self._residual(2 * layer),
                self._layernorm(f"{layer}.LN2", 2 * layer + 1),
                self._mlp(layer),
                self._residual(2 * layer + 1),
            ]
        return (*ops, self._layernorm("LN_f", 2 * self.shape.n_layers), self._loss())

    def _embed(self) -> Op:
        k, w, dw = self._k, self._w, self._dw
        return Op(
            "embed",
            partial(k.k_embed_fwd, self._matrix("x.0"), self.ids, w["wte"], w["wpe"]),
            partial(k.k_embed_bwd, dw["wte"], dw["wpe"], self._dstream, self.ids),
        )

    def _layernorm(self, name: str, i: int) -> Op:
        n = self.rows * self.length
        x, mean, rstd = self._matrix(f"x.{i}"), self._cut(f"mean.{i}", n), self._cut(f"rstd.{i}", n)
        gamma, beta = self._w[name + ".gamma"], self._w[name + ".beta"]
        dgamma, dbeta, dy = self._dw[name + ".gamma"], self._dw[name + ".beta"], self._matrix("dbranch")
        return Op(
            name,
            partial(self._k.k_layernorm_fwd, self._matrix(f"y.{i}"), mean, rstd, x, gamma, beta),
            partial(self._k.k_layernorm_bwd, self._dstream, dgamma, dbeta, dy, x, gamma, mean, rstd),
        )

    def _qkv(self, layer: int) -> Op:
        names = [f"{layer}.{name}" for name in ("W_Q", "W_K", "W_V")]
        w, dw = [self._w[name] for name in names], [self._dw[name] for name in names]
        out = [self._matrix(f"{name}.{layer}") for name in "qkv"]
        dout = [self._matrix(name) for name in ("dq", "dk", "dv")]
        x = self._matrix(f"y.{2 * layer}")
        return Op(
            f"{layer}.qkv",
            partial(self._k.k_attn_qkv_fwd, *out, x, *w),
            partial(self._k.k_attn_qkv_bwd, self._matrix("dbranch"), *dw, *dout, x, *w),
        )

    def _attention(self, layer: int) -> Op:
        qkv = [self._sequences(f"{name}.{layer}") for name in "qkv"]
        dqkv = [self._sequences(name) for name in ("dq", "dk", "dv")]
        out, dout = self._sequences(f"att.{layer}"), self._sequences("datt")
        lse = self._cut(f"lse.{layer}", self.rows, self.shape.n_heads, self.length)
        work = self._cut("attention", attention_work(self.length, self.shape.d_head))
        return Op(
            f"{layer}.attention",
            partial(self._k.k_attn_fwd, out, lse, *qkv, work),
            partial(self._k.k_attn_bwd, *dqkv, dout, out, lse, *qkv, work),
        )

    def _out(self, layer: int) -> Op:
        name, x = f"{layer}.W_O", self._matrix(f"att.{layer}")
        w, dw = self._w[name], self._dw[name]
        return Op(
            f"{layer}.out",
            partial(self._k.k_attn_out_fwd, self._matrix("branch"), x, w),
            partial(self._k.k_attn_out_bwd, self._matrix("datt"), dw, self._dstream, x, w),
        )

    def _mlp(self, layer: int) -> Op:
        n, hidden = self.rows * self.length, MLP_RATIO * self.shape.d_model
        h, a, dh = (self._cut(name, n, hidden) for name in (f"h.{layer}", "a", "dh"))
        x, names = self._matrix(f"y.{2 * layer + 1}"), [f"{layer}.{name}" for name in ("W_1", "W_2")]
        w, dw = [self._w[name] for name in names], [self._dw[name] for name in names]
        return Op(
            f"{layer}.mlp",
            partial(self._k.k_mlp_fwd, self._matrix("branch"), h, a, x, *w),
            partial(self._k.k_mlp_bwd, self._matrix("dbranch"), *dw, a, dh, self._dstream, h, x, *w),
        )

    def _residual(self, i: int) -> Op:
        return Op(
            f"residual {i}",
            partial(self._k.k_residual_add, self._matrix(f"x.{i + 1}"), self._matrix(f"x.{i}"), self._matrix("branch")),
            partial(self._k.k_residual_add_bwd, self._dstream, self._dstream, self._dstream),
        )

    def _loss(self) -> Op:
        n, name = self.rows * self.length, "wte" if self.shape.tied_head else "head"
        total, logits = self._cut("total", n), self._cut("logits", n, self.shape.vocab_size)
        x, w, dw = self._matrix(f"y.{2 * self.shape.n_layers}"), self._w[name], self._dw[name]
        return Op(
            "loss",
            partial(self._k.k_loss_fwd, self.losses, total, logits, x, w, self.targets),
            partial(self._k.k_loss_bwd, self._matrix("dbranch"), dw, logits, total, x, w, self.targets, self._scale),
        )
