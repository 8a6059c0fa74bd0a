"""Matrix products by cuBLASLt, through ctypes: the library comes with the CUDA wheels, and needs no binding of its own.

cuBLASLt promises the same bits for the same algorithm on the same card and library version, so the algorithm of every
product is chosen once, by timing, and kept: in a file of the cache folder, and in the run's state. Split-K sums are
allowed only where their order is fixed.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.engine.cuda.device import Device, library_path
from andrea.engine.cuda.nvrtc import INSTALL, cache_folder
from andrea.engine.cuda.tensor import Tensor
from andrea.errors import DataError, EngineError
from andrea.files import read_json, write_json

COMPUTE = {"fp32": 68, "tf32": 77, "bf16": 68, "fp16": 68, "fp8": 68}  # CUBLAS_COMPUTE_32F; 77 lets it round to TF32
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "float8_e4m3": 28}  # cudaDataType
_TRANSA, _TRANSB, _SCALE_A, _SCALE_B = 3, 4, 17, 18  # attributes of a product
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # attributes of a matrix
_MAX_WORKSPACE, _REDUCTIONS, _ALIGNMENT_A = 1, 3, 5  # attributes of a preference; A, B, C, D follow one another
_ORDERED_REDUCTIONS = 1 | 2  # in place and in the compute type; not in the output type, which would round in between
_CANDIDATES, _REPEATS = 8, 10

Algorithm = ctypes.c_uint64 * 8
ALGORITHM_BYTES = 64


class _Result(ctypes.Structure):
    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class Operand:
    """A row-major matrix inside a tensor: rows `stride` elements apart, used transposed or not; a batch is `step` apart.

    `scale` is the address of a float32 on the card that its numbers are multiplied by; 0 for none. FP8 only.
    """

    tensor: Tensor
    rows: int
    columns: int
    stride: int
    transposed: bool = False
    step: int = 0
    scale: int = 0


class CublasLt:
    """The library with a handle and a workspace for each stream (streams, bytes). `precision` decides about TF32."""

    def __init__(self, device: Device, precision: str, workspace: Tensor) -> None:
        self._device, self._compute = device, COMPUTE[precision]
        self._sides = [workspace.part(i * workspace.shape[1], workspace.shape[1]) for i in range(workspace.shape[0])]
        self._lib = _load()
        self._handle = ctypes.c_void_p()
        self._check("cublasLtCreate", ctypes.byref(self._handle))
        self.version = int(self._lib.cublasLtGetVersion())
        versions = device.versions()
        self.identity = f"{versions['gpu']}, driver {versions['driver']}, cuBLASLt {self.version}"
        self._file = cache_folder() / "cublaslt.json"
        self._kept = _read_kept(self._file)
        self.algorithms: dict[str, str] = {}

    def restore(self, identity: str, algorithms: dict[str, str]) -> bool:
        """Take the algorithms that a run used before; False when they belong to another card or version."""
        if identity != self.identity:
            return False
        self._kept.setdefault(identity, {}).update(algorithms)
        return True

    def save(self) -> None:
        """Keep what was chosen for the next process."""
        kept = _read_kept(self._file)
        kept.setdefault(self.identity, {}).update(self.algorithms)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, kept)

    def product(
        self,
        out: Operand,
        a: Operand,
        b: Operand,
        add: Operand | None = None,
        batch: int = 1,
        *,
        side: bool = False,
        name: str = "the product",
    ) -> Callable[[], None]:
        """A call that assigns out = a b, or add + a b; `add` may be `out`. Row-major, as everything of ours.

        `side` runs it on the device's side stream, with the second workspace. `name` is for errors.

        The library thinks in columns: it is given out' = b' a', which is the same memory.
        """
        depth = a.rows if a.transposed else a.columns
        assert depth == (b.columns if b.transposed else b.rows), f"{a} times {b}"
        description, sources = self._description(b, a), (b, a, add or out, out)
        layouts = [self._layout(operand, batch) for operand in sources]
        addresses = [ctypes.c_void_p(operand.tensor.address) for operand in sources]
        one, beta = ctypes.c_float(1.0), ctypes.c_float(0.0 if add is None else 1.0)
        work, size = ctypes.c_void_p(self._sides[side].address), ctypes.c_size_t(self._sides[side].nbytes)
        main, other = (ctypes.c_void_p(s.ptr) for s in (self._device.stream, self._device.side.stream))
        matmul, handle, device = self._lib.cublasLtMatmul, self._handle, self._device
        key = _key(self._compute, sources, add is not None, batch)

        def call(algorithm: Any, stream: Any) -> None:
            code = matmul(
                handle, description, ctypes.byref(one), addresses[0], layouts[0], addresses[1], layouts[1],
                ctypes.byref(beta), addresses[2], layouts[2], addresses[3], layouts[3],
                ctypes.byref(algorithm), work, size, stream,
            )  # fmt: skip
            if code:
                raise EngineError(f"cuBLASLt must run {name}, {key}", got=f"status {code}", fix="run `andrea doctor`")

        problem = (description, layouts, addresses, name)
        chosen = self._choose(key, problem, lambda algorithm: call(algorithm, main), device)
        return lambda: call(chosen, other if side else main)

    def _choose(self, key: str, problem: tuple[Any, ...], call: Any, device: Device) -> Any:
        """The algorithm that is kept for this product, else the fastest of the library's proposals."""
        known = self.algorithms.get(key) or self._kept.get(self.identity, {}).get(key)
        if known is None:
            candidates = self._candidates(key, *problem)
            for algorithm in candidates:
                call(algorithm)  # loads its code
            times = [device.seconds(lambda a=algorithm: call(a), _REPEATS) for algorithm in candidates]
            known = bytes(candidates[times.index(min(times))]).hex()
        self.algorithms[key] = known
        return Algorithm.from_buffer_copy(bytes.fromhex(known))

    def _candidates(
        self, key: str, description: Any, layouts: Sequence[Any], addresses: Sequence[Any], name: str
    ) -> list[Any]:
        preference = ctypes.c_void_p()
        self._check("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        settings = [
            (_MAX_WORKSPACE, ctypes.c_uint64(self._sides[0].nbytes)),
            (_REDUCTIONS, ctypes.c_uint32(_ORDERED_REDUCTIONS)),
        ]
        for i, address in enumerate(addresses):
            settings.append((_ALIGNMENT_A + i, ctypes.c_uint32(min(256, address.value & -address.value))))
        for attribute, value in settings:
            self._set("MatmulPreference", preference, attribute, value)
        results, found = (_Result * _CANDIDATES)(), ctypes.c_int()
        self._check(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, description, *layouts, preference,
            _CANDIDATES, results, ctypes.byref(found),
        )  # fmt: skip
        good = [results[i].algorithm for i in range(found.value) if results[i].state == 0]
        if not good:
            raise EngineError(f"cuBLASLt must know an algorithm for {name}", got=f"none for {key}", fix=INSTALL)
        return good

    def _description(self, a: Operand, b: Operand) -> Any:
        """What is done to the operands A and B of the library."""
        description = ctypes.c_void_p()
        self._check("cublasLtMatmulDescCreate", ctypes.byref(description), self._compute, _TYPES["float32"])
        for flag, scale, operand in ((_TRANSA, _SCALE_A, a), (_TRANSB, _SCALE_B, b)):
            self._set("MatmulDesc", description, flag, ctypes.c_int(int(operand.transposed)))
            if operand.scale:
                self._set("MatmulDesc", description, scale, ctypes.c_void_p(operand.scale))
        return description

    def _layout(self, operand: Operand, batch: int) -> Any:
        """The operand as the library sees it: its rows are our columns."""
        layout = ctypes.c_void_p()
        self._check(
            "cublasLtMatrixLayoutCreate", ctypes.byref(layout), _TYPES[operand.tensor.dtype],
            ctypes.c_uint64(operand.columns), ctypes.c_uint64(operand.rows), ctypes.c_int64(operand.stride),
        )  # fmt: skip
        if batch > 1:
            self._set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(batch))
            self._set("MatrixLayout", layout, _BATCH_STRIDE, ctypes.c_int64(operand.step))
        return layout

    def _set(self, kind: str, target: Any, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._check(f"cublasLt{kind}SetAttribute", target, attribute, ctypes.byref(value), size)

    def _check(self, function: str, *arguments: Any) -> None:
        code = getattr(self._lib, function)(*arguments)
        if code:
            raise EngineError(f"{function} must succeed", got=f"status {code}", fix="run `andrea doctor`")


def library_version() -> str:
    """For people: the library's version and where it lies. EngineError when it cannot be loaded."""
    return f"{_load().cublasLtGetVersion()} in {library_path('cublasLt')}"


def _key(compute: int, sources: Sequence[Operand], adds: bool, batch: int) -> str:
    """Everything that a choice depends on; addresses only by their alignment."""
    parts = [
        f"{o.tensor.dtype[0]}{o.tensor.itemsize}.{o.rows}x{o.columns}/{o.stride}{'t' if o.transposed else ''}+{o.step}"
        f"@{min(256, o.tensor.address & -o.tensor.address)}"
        for o in sources
    ]
    return f"{compute} {' '.join(parts)} {'adds' if adds else 'assigns'} {batch}"


def _read_kept(path: Path) -> dict[str, dict[str, str]]:
    """{card and versions: {product: algorithm}}; a cache that cannot be read is made anew."""
    try:
        kept = read_json(path, "the cache of cuBLASLt's algorithms") if path.exists() else {}
    except DataError:
        kept = {}
    return {str(k): dict(v) for k, v in kept.items() if isinstance(v, dict)}


def _load() -> Any:
    path = library_path("cublasLt")
    if path is None:
        raise EngineError("cuBLASLt must be installed", got="no libcublasLt", fix=INSTALL)
    try:
        library = ctypes.CDLL(path)
    except OSError as cause:
        raise EngineError("cuBLASLt must load", got=cause, fix=INSTALL) from cause
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library
