"""`andrea doctor`: what the CUDA engine finds on this machine, what it misses, and the command that mends it.

Each line is one check; a check that fails says what must hold, what was found and what to do. The last one trains a
very small model for a step in every precision that the card has and compares the loss with the CPU engine's.
"""

import dataclasses
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from andrea.engine.cuda import nvrtc
from andrea.errors import AndreaError, EngineError
from andrea.experiment import InitSpec, Shape, TrainSpec
from andrea.hooks import card_problem, gpu_capability

SHAPE = Shape(vocab_size=101, d_model=64, n_heads=2, n_layers=2, context=77, tied_head=True)
INIT = InitSpec("normal", 0.05, 0.05, 0.05, 0.05, residual_scaling=True)
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "fp16": 2e-3, "fp8": 2e-2}  # relative, of the loss


def doctor() -> int:
    """Print every check; 0 when the CUDA engine can work here, else 1. Checks that need a failed one are left out."""
    for name, check in _CHECKS:
        try:
            print(f"ok    {name}: {check()}", flush=True)
        except AndreaError as mistake:
            lines = str(mistake).splitlines()
            print(f"FAIL  {name}: {lines[0]}")
            print("\n".join(f"    {line}" for line in lines[1:]), flush=True)
            print("So the CUDA engine cannot run here (the other checks were left out).")
            print("The CPU engine, and with it train_tiny, needs none of this.")
            return 1
    return 0


def _driver() -> str:
    problem = card_problem()
    if problem:
        fix = "on a machine with a card: install NVIDIA's driver, 580 or newer; nvidia-smi must then list the card"
        raise EngineError("an NVIDIA card and its driver must be there", got=problem, fix=fix)
    return "compute capability {}.{}".format(*gpu_capability())


def _compiler() -> str:
    major, minor = nvrtc.version()
    return f"NVRTC {major}.{minor}, cuda-bindings {_installed('cuda-bindings')}, headers in {nvrtc.headers()[0]}"


def _cupy() -> str:
    from andrea.engine.cuda.device import import_cupy

    return f"{import_cupy().__version__}"


def _card() -> str:
    from andrea.engine.cuda.device import Device

    device = Device()
    v = device.versions()
    major, minor = device.capability
    return (
        f"{device.name}, compute capability {major}.{minor}, kernels for sm_{device.arch}, "
        f"{device.free_bytes / 2**30:.1f} GiB free, driver for CUDA {_dotted(v['driver'])}, runtime {_dotted(v['cuda'])}"
    )


def _library() -> str:
    from andrea.engine.cuda.cublaslt import library_version

    return library_version()


def _kernels() -> str:
    """Losses of one batch before and after an update, in every precision of the card, against float64 on the CPU."""
    from andrea.engine.cpu import CpuEngine
    from andrea.engine.cuda.device import Device
    from andrea.engine.cuda.engine import CudaEngine
    from andrea.engine.cuda.fp8 import CAPABILITY
    from andrea.engine.layout import initial_weights
    from andrea.engine.reference import KERNELS

    weights = initial_weights(SHAPE, INIT, 1)
    zeros, rates = np.zeros_like(weights), np.full(2, 1e-2)
    batch = np.random.default_rng(1).integers(0, SHAPE.vocab_size, (1, 4, SHAPE.context + 1)).astype(np.int32)
    batches = np.repeat(batch, 2, axis=0)
    reference = CpuEngine(SHAPE, _train("fp32"), 1, KERNELS, "float64")
    wide, none = weights.astype(np.float64), zeros.astype(np.float64)
    reference.load(wide, none, none, 0)
    want, _ = reference.run(batches, rates)
    errors = []
    for precision, limit in TOLERANCE.items():
        if precision == "fp8" and Device().capability < CAPABILITY:
            continue
        engine = CudaEngine(SHAPE, _train(precision))
        engine.load(weights, zeros, zeros, 0)
        got, _ = engine.run(batches, rates)
        error = float(np.abs(got / want - 1).max())
        if not error <= limit:
            fix = "report the card, the driver and this line; until then use another precision or the CPU engine"
            raise EngineError(f"{precision} must give the CPU's loss within {limit}", got=f"{got} for {want}", fix=fix)
        errors.append(f"{precision} {error:.1e}")
    return "loss of two steps against float64 on the CPU: " + ", ".join(errors)


def _train(precision: str) -> TrainSpec:
    from andrea.engine.cuda.inference import bare_spec

    return dataclasses.replace(bare_spec(precision), batch_size=4, weight_decay=0.1, clip=1.0)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _dotted(number: str) -> str:
    """13000 -> 13.0, as CUDA counts."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


_CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("driver", _driver),
    ("compiler", _compiler),
    ("CuPy", _cupy),
    ("card", _card),
    ("cuBLASLt", _library),
    ("kernels", _kernels),
)
