"""Engines: they know tensors, and nothing of files, sources or bandits."""

import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from andrea.engine import blas
from andrea.engine.interface import Choice, Engine, Inference, Snapshot
from andrea.experiment import Experiment, Shape

__all__ = ["Choice", "Engine", "Inference", "Snapshot", "open_engine", "open_inference", "versions"]


def open_engine(experiment: Experiment, threads: int) -> Engine:
    """The engine that the experiment names, ready for load(); EngineError when it cannot run here."""
    return _ENGINES[experiment.train.engine](experiment, threads)


def open_inference(shape: Shape, engine: str, precision: str, threads: int) -> Inference:
    """A model of this shape for use, ready for take(). The cpu engine is always fp32, whatever `precision` says."""
    if engine == "cuda":
        from andrea.engine.cuda.inference import CudaInference

        return CudaInference(shape, precision)
    from andrea.engine.inference import CpuInference
    from andrea.engine.loops import KERNELS
    from andrea.engine.warmup import announce

    announce()
    return CpuInference(shape, threads, KERNELS)


def versions() -> dict[str, str]:
    """Everything that can change the bits of a result on the CPU."""
    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "llvmlite": version("llvmlite"),
        **blas.versions(),
        "cpu": _cpu_model(),
    }


def _open_cpu(experiment: Experiment, threads: int) -> Engine:
    from andrea.engine.cpu import CpuEngine
    from andrea.engine.loops import KERNELS
    from andrea.engine.warmup import warm_up

    warm_up(experiment.train)
    return CpuEngine(experiment.shape, experiment.train, threads, KERNELS)


def _open_cuda(experiment: Experiment, threads: int) -> Engine:  # noqa: ARG001
    from andrea.engine.cuda.engine import CudaEngine

    return CudaEngine(experiment.shape, experiment.train)


_ENGINES: dict[str, Callable[[Experiment, int], Engine]] = {"cpu": _open_cpu, "cuda": _open_cuda}


def _cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()
