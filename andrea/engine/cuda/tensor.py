"""A typed piece of device memory: an address, a shape and a type. CuPy has no bfloat16; the kernels do not ask for it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.engine.plan import ITEMSIZE

HOST = {
    "float32": np.float32,
    "float16": np.float16,
    "int32": np.int32,
    "uint8": np.uint8,
    "bfloat16": np.uint16,
    "float8_e4m3": np.uint8,  # its codes, as they are
}


@dataclass(frozen=True)
class Tensor:
    """Row-major and dense. `dtype` is a NumPy name, bfloat16 or float8_e4m3."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def part(self, offset: int, *shape: int) -> "Tensor":
        """`shape` elements from element `offset` on, as a view."""
        end = offset + math.prod(shape)
        assert offset >= 0, f"part from {offset}"
        assert end <= self.size, f"part {offset}..{end} of a tensor of {self.size}"
        return Tensor(self.address + offset * self.itemsize, shape, self.dtype)

    def reshape(self, *shape: int) -> "Tensor":
        """The same elements in another shape."""
        assert math.prod(shape) == self.size, f"{self.shape} cannot be {shape}"
        return Tensor(self.address, shape, self.dtype)


def to_device_type(values: NDArray[np.floating], dtype: str) -> NDArray[np.generic]:
    """Host numbers in the bits of `dtype`; bfloat16 as uint16, rounded to nearest even."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, HOST[dtype])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_device_type(raw: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """The opposite; bfloat16 and float16 come back as float32, which holds them exactly."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32) if dtype == "float16" else raw
