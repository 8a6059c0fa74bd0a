"""The card's memory: one allocation, cut by the plan; after seal() neither we nor CuPy can take more."""

from andrea.engine.cuda.device import Device
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.plan import ALIGN, MemoryPlan
from andrea.errors import EngineError


class DeviceArena:
    """Zeroed device memory for a plan."""

    def __init__(self, device: Device, plan: MemoryPlan) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}
        start = device.allocate(plan.total)
        assert start % ALIGN == 0, f"the card's memory starts at {start:#x}"
        for buffer in plan.buffers:
            home = self._tensors.get(buffer.inside)
            self._tensors[buffer.name] = tensor = Tensor(home.address if home else start, buffer.shape, buffer.dtype)
            assert not home or tensor.nbytes <= home.nbytes, f"{buffer.name} is larger than {buffer.inside}"
            start += buffer.nbytes
        self._sealed = False

    def __getitem__(self, name: str) -> Tensor:
        """The planned buffer `name`; EngineError once the engine has started."""
        if self._sealed:
            raise EngineError(
                "nothing is allocated after the start of an engine",
                got=f"a request for {name}",
                fix="take the buffer before seal(); this is a defect of the engine, please report it",
            )
        return self._tensors[name]

    def seal(self) -> None:
        """From here on every request is an error, also one to CuPy."""
        self._sealed = True
        self._device.forbid_allocation()
