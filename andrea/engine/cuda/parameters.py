"""Parameters and their gradients as tensors on the card, and where the matrix ops read them."""

from collections.abc import Mapping

from andrea.engine.cuda.matrix import QkvWeight
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.weights import LOW_PRECISION, QKV, copies, head_name, padded_vocabulary
from andrea.engine.layout import Parameter, parameters
from andrea.experiment import Shape


class Parameters:
    """By name: the flat buffers, or the 16-bit working copies where there are any."""

    def __init__(self, shape: Shape, precision: str, buffers: Mapping[str, Tensor]) -> None:
        self._shape, self._buffers = shape, buffers
        self._table: dict[str, Parameter] = {p.name: p for p in parameters(shape)}
        self._copies = copies(shape) if precision in LOW_PRECISION else {}

    def value(self, name: str) -> Tensor:
        """The float32 parameter."""
        return self._view("weights", name)

    def gradient(self, name: str) -> Tensor:
        """Its float32 gradient."""
        return self._view("gradients", name)

    def matrix(self, name: str) -> Tensor:
        """(I, O) as the matrix ops read it."""
        if name not in self._copies:
            return self.value(name)
        return self._buffers["copy"].part(self._copies[name].offset, *self._table[name].shape)

    def qkv(self, layer: int) -> QkvWeight:
        """The three matrices of a layer."""
        c, first = self._shape.d_model, f"{layer}.{QKV[0]}"
        if not self._copies:
            return QkvWeight(self._buffers["weights"].part(self._table[first].offset, 3, c, c), packed=False)
        return QkvWeight(self._buffers["copy"].part(self._copies[first].offset, c, 3 * c), packed=True)

    def qkv_gradient(self, layer: int) -> Tensor:
        """(3, C, C)."""
        c, first = self._shape.d_model, self._table[f"{layer}.{QKV[0]}"]
        return self._buffers["gradients"].part(first.offset, 3, c, c)

    def head(self) -> Tensor:
        """(V, C), or (P, C) in 16 bits."""
        if not self._copies:
            return self.value(head_name(self._shape))
        return self._buffers["copy"].part(0, padded_vocabulary(self._shape), self._shape.d_model)

    def head_gradient(self) -> Tensor:
        """(P, C): the head's gradient, and the rows behind it, to which the padding's gradient, zero, may be added.

        An odd number of rows would cost the product half its speed.
        """
        start = self._table[head_name(self._shape)].offset
        return self._buffers["gradients"].part(start, padded_vocabulary(self._shape), self._shape.d_model)

    def _view(self, buffer: str, name: str) -> Tensor:
        p = self._table[name]
        return self._buffers[buffer].part(p.offset, *p.shape)
