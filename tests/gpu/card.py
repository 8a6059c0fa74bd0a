"""A card for kernel tests: arrays go up, kernels run, results come down and are compared with the float64 twins."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.device import Device
from andrea.engine.cuda.tensor import Tensor, from_device_type, to_device_type

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
PRECISIONS = ("fp32", "bf16", "fp16")


class Card:
    """Device memory for as long as the session lasts; NaN wherever nothing was written."""

    def __init__(self) -> None:
        self.device = Device()

    def empty(self, dtype: str, *shape: int) -> Tensor:
        """Filled with NaN (or -1), so that what a kernel leaves out is seen."""
        values = np.full(shape, -1 if dtype == "int32" else np.nan, np.int32 if dtype == "int32" else np.float32)
        return self.up(values, dtype)

    def up(self, values: NDArray[Any], dtype: str) -> Tensor:
        values = np.asarray(values)
        itemsize = {"float32": 4, "int32": 4, "uint8": 1}.get(dtype, 2)
        tensor = Tensor(self.device.allocate(max(16, values.size * itemsize)), values.shape, dtype)
        self.device.write(tensor, values)
        return tensor

    def down(self, tensor: Tensor) -> NDArray[Any]:
        return self.device.read(tensor)

    def run(self, file: str, name: str, precision: str, grid: tuple[int, ...], block: int, *values: Any, shared: int = 0,
            defines: Mapping[str, int | str] | None = None) -> None:  # fmt: skip
        self.device.kernel(file, name, precision, defines)(grid, block, *values, shared=shared)
        self.device.wait()


def rounded(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """`values` as the card holds them, in float64."""
    return np.asarray(from_device_type(to_device_type(np.asarray(values, np.float32), dtype), dtype), np.float64)


def check(got: NDArray[Any], ref: NDArray[Any], low: NDArray[Any], dtype: str, what: str) -> None:
    """Within twice the error of the same maths at the kernel's own precision, and a few ulps; NaN fails."""
    got, ref, low = (np.asarray(a, np.float64) for a in (got, ref, low))
    assert got.shape == ref.shape, f"{what}: shape {got.shape}, expected {ref.shape}"
    scale = np.abs(ref).max(initial=0.0)
    limit = 2 * np.abs(low - ref).max(initial=0.0) + 4 * EPS[dtype] * scale
    wrong = np.argwhere(~(np.abs(got - ref) <= limit))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: {len(wrong)} of {ref.size} outside {limit:.3g}, first at {at}: got {got[at]}, expected {ref[at]}"
        )
