"""One allocation for everything, cut by a plan; after the start every further request is an error."""

import os
from typing import Any

import numpy as np

from andrea.engine.buffers_cpu import cpu_buffers
from andrea.engine.cuda.buffers import cuda_buffers
from andrea.engine.kernels import Array
from andrea.engine.layout import count
from andrea.engine.plan import ALIGN, Buffer, MemoryPlan, make_plan
from andrea.errors import EngineError
from andrea.experiment import Experiment

__all__ = ["Arena", "Buffer", "MemoryPlan", "plan_memory", "require_memory"]

MOST_PARAMETERS = 2**31 - 1  # int32 in the checkpoint's header
STATE_BYTES = 3 * 4  # weights, m and v of a parameter


def plan_memory(experiment: Experiment) -> MemoryPlan:
    """What the experiment's engine will hold, computed without a device."""
    shape, train = experiment.shape, experiment.train
    if train.engine == "cpu":
        return make_plan(cpu_buffers(shape, train.batch_size // train.microbatches, train.partitions))
    rows = train.batch_size // train.microbatches
    return make_plan(cuda_buffers(shape, rows, train.precision, train.microbatches, recompute=train.recompute))


def require_memory(experiment: Experiment) -> None:
    """EngineError for a model that no checkpoint could hold, or that this machine could not, before anything is made.

    The system itself promises memory that it does not have, and kills the process hours later.
    """
    n, machine = count(experiment.shape), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n > MOST_PARAMETERS:
        raise EngineError(
            f"a model must have at most {MOST_PARAMETERS:,} parameters, which is what a checkpoint can count",
            got=f"{n:,}",
            fix="lower model.d_model, model.n_layers or tokenizer.segments",
        )
    state = STATE_BYTES * n
    needed = state + plan_memory(experiment).total if experiment.train.engine == "cpu" else state
    if needed > machine:
        raise EngineError(
            f"{experiment.name} needs {needed / 1e9:,.1f} GB of main memory: its buffers and one checkpoint",
            got=f"a machine with {machine / 1e9:,.1f} GB",
            fix="lower train.batch_size or the model's sizes, raise train.microbatches, or take a larger machine",
        )


class Arena:
    """Host memory for a plan. `take` hands out views until `seal`."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        try:
            block = np.zeros(plan.total + ALIGN, np.uint8)
        except MemoryError as cause:
            raise EngineError(
                f"the engine needs {plan.total:,} bytes of memory",
                got="the system refused them",
                fix="lower train.batch_size, or raise train.microbatches",
            ) from cause
        start = -block.ctypes.data % ALIGN
        self._views: dict[str, Array] = {}
        for buffer in plan.buffers:
            self._views[buffer.name] = _view(block[start : start + buffer.nbytes], buffer)
            start += buffer.nbytes
        self._sealed = False

    def take(self, name: str) -> Array:
        """The planned buffer `name`; EngineError when it is not planned, or when the engine has started."""
        if self._sealed:
            raise EngineError(
                "nothing is allocated after the start of an engine",
                got=f"a request for {name}",
                fix="plan the buffer and take it before seal(); this is a defect of the engine, please report it",
            )
        if name not in self._views:
            raise EngineError(
                "a buffer must be planned before it is taken",
                got=name,
                fix="add it to the plan; this is a defect of the engine, please report it",
            )
        return self._views[name]

    def take_all(self) -> dict[str, Array]:
        """Every buffer by name."""
        return {buffer.name: self.take(buffer.name) for buffer in self.plan.buffers}

    def seal(self) -> None:
        """From here on every request is an error."""
        self._sealed = True


def _view(raw: Any, buffer: Buffer) -> Array:
    dtype = np.dtype(buffer.dtype)
    count = int(np.prod(buffer.shape, dtype=np.int64))
    view: Array = raw[: count * dtype.itemsize].view(dtype).reshape(buffer.shape)
    return view
