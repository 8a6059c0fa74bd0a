"""The card's messages, where there is no card."""

from typing import Any

import pytest

from andrea.engine.cuda.device import Device
from andrea.errors import EngineError


class _Full:
    """A CuPy whose card is full."""

    class CUDARuntimeError(Exception): ...

    cuda = runtime = property(lambda self: self)  # type: ignore[assignment]

    def Memory(self, nbytes: int) -> Any:
        raise self.CUDARuntimeError(f"out of memory: {nbytes}")

    def memGetInfo(self) -> tuple[int, int]:
        return 2**30, 8 * 2**30


def test_too_little_memory_names_the_settings() -> None:
    """Guards the way on: which settings make a run fit, what they cost, and how much is missing."""
    device = Device.__new__(Device)
    device._cupy, device._runtime, device.name = _Full(), _Full(), "small card"
    with pytest.raises(EngineError) as caught:
        device.allocate(3 * 2**30)
    told = str(caught.value)
    for part in ("3.00 GiB", "1.00 GiB free on small card", "train.recompute", "train.microbatches"):
        assert part in told
    assert "batch stays" in told
