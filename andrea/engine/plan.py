"""A memory plan: every buffer of an engine by name, shape, type and part, before anything is allocated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

ALIGN = 256  # bytes: what cuBLASLt asks of its workspace, and more than a cache line or the widest vector
MIB = 1024**2

ITEMSIZE = {"float32": 4, "float64": 8, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "float8_e4m3": 1}


@dataclass(frozen=True)
class Buffer:
    """One array of the arena. `part` is what it is printed under; `dtype` is a NumPy name, bfloat16 or float8_e4m3.

    `inside` names an earlier buffer at whose start it lies; it then takes no memory of its own.
    """

    part: str
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    inside: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that it adds to the arena, rounded up to the arena's alignment."""
        size = 0 if self.inside else math.prod(self.shape) * ITEMSIZE[self.dtype]
        return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class MemoryPlan:
    """All buffers in arena order."""

    buffers: tuple[Buffer, ...]

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """(part, bytes) in order of first appearance."""
        sums: dict[str, int] = {}
        for buffer in self.buffers:
            sums[buffer.part] = sums.get(buffer.part, 0) + buffer.nbytes
        return tuple(sums.items())

    @property
    def total(self) -> int:
        """Bytes of the whole arena."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def __str__(self) -> str:
        rows = [*self.parts, ("total", self.total)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {size / MIB:10.1f} MiB" for name, size in rows)


def make_plan(buffers: Iterable[Buffer]) -> MemoryPlan:
    """Check that no two buffers share a name."""
    plan = MemoryPlan(tuple(buffers))
    names = [buffer.name for buffer in plan.buffers]
    assert len(set(names)) == len(names), f"buffer named twice: {sorted(n for n in set(names) if names.count(n) > 1)}"
    return plan
