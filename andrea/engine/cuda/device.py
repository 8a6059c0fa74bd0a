"""The card: found and checked, its stream, its memory, its kernels. CuPy is used here and nowhere else.

Memory comes in one piece, before the start; afterwards CuPy's allocator raises, so that no later line can allocate unseen.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda import nvrtc
from andrea.engine.cuda.gate import ACT_NAMES, bind, signatures
from andrea.engine.cuda.tensor import HOST, Tensor, from_device_type, to_device_type
from andrea.engine.cuda.tensor_map import encode
from andrea.errors import EngineError

_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
CPU_INSTEAD = 'or write "engine": "cpu" and "precision": "fp32" in the train section'


def import_cupy() -> Any:
    """CuPy, or an EngineError that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no driver; we say so ourselves, as an error
            import cupy
    except ImportError as cause:
        raise EngineError('"engine": "cuda" needs CuPy', got=cause, fix=f"{nvrtc.INSTALL}, {CPU_INSTEAD}") from cause
    return cupy


@dataclass(frozen=True)
class Kernel:
    """One kernel of one compiled file. Calling it launches on the device's stream, or on its side stream, or beside both."""

    name: str
    function: Any
    signature: tuple[Any, ...]
    act: str
    device: "Device"

    def __call__(
        self,
        grid: tuple[int, ...],
        block: int,
        *values: Any,
        shared: int = 0,
        side: bool = False,
        beside: bool = False,
    ) -> None:
        bound, device = bind(self.name, self.signature, values, self.act), self.device
        if shared > 8 * 1024:  # with static shared memory it could pass 48 KiB, which must be asked for
            self.function.max_dynamic_shared_size_bytes = shared
        with device.side.stream if side else device.beside if beside else device.stream:
            self.function(grid, (block,), bound, shared_mem=shared)


class Side:
    """A second stream for work that nothing waits for at once. Everything here is captured into graphs as dependences."""

    def __init__(self, device: "Device", event: Any, stream: Any) -> None:
        self.stream = stream
        self._device, self._event = device, event
        self._mark: Any = None

    def fork(self) -> None:
        """What follows on the side comes after what the main stream has been given so far."""
        event = self._event(disable_timing=True)
        event.record(self._device.stream)
        self.stream.wait_event(event)

    def barrier(self) -> None:
        """The main stream waits for the side's work from before the last barrier, not for what came since."""
        if self._mark is not None:
            self._device.stream.wait_event(self._mark)
        self._mark = self._event(disable_timing=True)
        self._mark.record(self.stream)

    def join(self) -> None:
        """The main stream waits for all of the side's work."""
        event = self._event(disable_timing=True)
        event.record(self.stream)
        self._device.stream.wait_event(event)
        self._mark = None


class Device:
    """Card 0 of those visible. EngineError when there is none, or when it is too old."""

    def __init__(self) -> None:
        self._cupy = cupy = import_cupy()
        self._runtime = cupy.cuda.runtime
        _require_card(self._runtime)
        cupy.cuda.Device(0).use()
        properties = self._runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()
        self.capability = (properties["major"], properties["minor"])
        self.arch = nvrtc.architecture(self.capability)
        self.shared_limit = int(properties["sharedMemPerBlockOptin"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.beside = cupy.cuda.Stream(non_blocking=True)  # for work that the host alone puts in order with the rest
        self.side = Side(self, cupy.cuda.Event, cupy.cuda.Stream(non_blocking=True))
        self._modules: dict[tuple[str, str], Any] = {}
        self._held: list[Any] = []

    @property
    def free_bytes(self) -> int:
        """Memory that nobody holds at this moment."""
        return int(self._runtime.memGetInfo()[0])

    def versions(self) -> dict[str, str]:
        """What may change the bits of a result."""
        return {
            "gpu": f"{self.name} sm_{self.capability[0]}{self.capability[1]}",
            "driver": str(self._runtime.driverGetVersion()),
            "cuda": str(self._runtime.runtimeGetVersion()),
            "nvrtc": ".".join(map(str, nvrtc.version())),
            "cupy": self._cupy.__version__,
        }

    def allocate(self, nbytes: int) -> int:
        """The address of one block of device memory, zeroed; EngineError when the card has too little."""
        try:
            block = self._cupy.cuda.Memory(nbytes)
        except self._runtime.CUDARuntimeError as cause:
            raise EngineError(
                f"the engine needs {nbytes / 2**30:.2f} GiB of the card's memory",
                got=f"{self.free_bytes / 2**30:.2f} GiB free on {self.name}",
                fix="set train.recompute to true (the same bits, slower), double train.microbatches (the batch stays the "
                "same, memory for activations halves), or end other programs",
            ) from cause
        self._held.append(block)
        self._runtime.memset(block.ptr, 0, nbytes)
        self._runtime.deviceSynchronize()  # our streams would not wait for it
        return int(block.ptr)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the card reads and writes by itself, for as long as the array lives."""
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def forbid_allocation(self) -> None:
        """From here on, any request to CuPy for device memory is an error."""
        self._cupy.cuda.set_allocator(_refuse)

    def kernel(self, file: str, name: str, precision: str, defines: Mapping[str, int | str] | None = None) -> Kernel:
        """The kernel `name` of kernels/`file`, compiled for this card; the file is loaded once."""
        macros = {"ACT": nvrtc.ACT[precision], **(defines or {})}
        key = (file, repr(sorted(macros.items())))
        if key not in self._modules:
            path = nvrtc.cached_cubin(file, self.arch, macros)
            self._modules[key] = self._cupy.RawModule(path=str(path))
        function = self._modules[key].get_function(name)
        return Kernel(name, function, signatures(file)[name], ACT_NAMES[nvrtc.ACT[precision]], self)

    def tensor_map(self, matrix: Tensor, box_rows: int) -> NDArray[np.int32]:
        """A map for Hopper's copy engine; see andrea.engine.cuda.tensor_map."""
        return encode(matrix, box_rows)

    def allow_large_clusters(self, kernel: Kernel) -> None:
        """Let a kernel have clusters of more than eight blocks, which not every card of an architecture need be able to."""
        self._cupy.cuda.driver.funcSetAttribute(kernel.function.kernel.ptr, _LARGE_CLUSTERS, 1)

    def send(self, target: Tensor, source: NDArray[Any]) -> None:
        """Copy from pinned memory, in the order of the stream, without waiting."""
        assert source.nbytes <= target.nbytes, f"{source.nbytes} bytes into {target.nbytes}"
        to_device = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(target.address, source.ctypes.data, source.nbytes, to_device, self.stream.ptr)

    def receive(self, source: Tensor, into: NDArray[Any]) -> None:
        """Copy to pinned memory, in the order of the stream, without waiting."""
        assert source.nbytes == into.nbytes, f"{source.nbytes} bytes into {into.nbytes}"
        to_host = self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(into.ctypes.data, source.address, source.nbytes, to_host, self.stream.ptr)

    def write(self, target: Tensor, values: NDArray[Any]) -> None:
        """Copy numbers into a tensor, converted to its type; returns when they are there."""
        raw = to_device_type(values, target.dtype)
        assert raw.size == target.size, f"{raw.size} numbers into a tensor of {target.size}"
        # in our stream's order: a plain copy of few bytes returns before they have arrived, and kernels of ours do not wait for it
        to_device = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(target.address, raw.ctypes.data, raw.nbytes, to_device, self.stream.ptr)
        self.wait()

    def read(self, source: Tensor) -> NDArray[Any]:
        """A copy on the host, when all work before is done; 16-bit floats come as float32."""
        raw = np.empty(source.shape, HOST[source.dtype])
        self.wait()
        self._runtime.memcpy(raw.ctypes.data, source.address, raw.nbytes, self._runtime.memcpyDeviceToHost)
        return from_device_type(raw, source.dtype)

    def fetch(self, source: Tensor, into: NDArray[Any]) -> None:
        """Copy to memory of pinned(), when all work before is done: several times as fast as read()."""
        assert source.nbytes == into.nbytes, f"{source.nbytes} bytes into {into.nbytes}"
        self.wait()
        self._runtime.memcpy(into.ctypes.data, source.address, into.nbytes, self._runtime.memcpyDeviceToHost)

    def clear(self, target: Tensor) -> None:
        """Zero bytes, in the order of the stream."""
        self._runtime.memsetAsync(target.address, 0, target.nbytes, self.stream.ptr)

    def wait(self) -> None:
        """Until all work is done; errors of earlier launches surface here."""
        self.stream.synchronize()

    def wait_beside(self) -> None:
        """Until all work on the stream beside is done."""
        self.beside.synchronize()

    def record(self, work: Any) -> Any:
        """`work()` captured as a graph, with launch(stream). Nothing of it runs now."""
        with self.stream:
            self.stream.begin_capture()
            try:
                work()
            finally:
                graph = self.stream.end_capture()
        graph.upload(self.stream)
        return graph

    def seconds(self, work: Any, repeats: int) -> float:
        """Mean time of `work()` on the card."""
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record(self.stream)
        for _ in range(repeats):
            work()
        end.record(self.stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3 / repeats


def _require_card(runtime: Any) -> None:
    """EngineError unless a card and a driver for it are there."""
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as cause:
        raise EngineError(
            "an NVIDIA card with a driver of this CuPy's CUDA version must be there",
            got=cause,
            fix=f"update the driver (nvidia-smi shows its version), {CPU_INSTEAD}",
        ) from cause
    if count == 0:
        raise EngineError("an NVIDIA card must be there", got="none is visible", fix=f"check nvidia-smi, {CPU_INSTEAD}")


def _refuse(nbytes: int) -> Any:
    raise EngineError(
        "nothing is allocated on the card after the start of an engine",
        got=f"a request for {nbytes} bytes",
        fix="plan the buffer; this is a defect of the engine, please report it",
    )


def library_path(stem: str) -> str | None:
    """A CUDA library of the installed wheels, or by the system's search; None when there is none."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(root).glob(f"*/lib/lib{stem}.so.*")):
            return str(path)
    import ctypes.util

    return ctypes.util.find_library(stem)
