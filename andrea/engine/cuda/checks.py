"""What the CUDA engine refuses beside what every engine does: models that no kernel holds, and states that are none of its own."""

import math
from typing import Any

from andrea.engine.cuda.cublaslt import ALGORITHM_BYTES
from andrea.engine.cuda.device import Device
from andrea.errors import CheckpointError, EngineError
from andrea.experiment import Shape

WIDEST = 4096  # of a LayerNorm row in the registers of a block's warps
SAMPLING_FLOATS = 1024  # of shared memory that sampling needs beside the scores


def check_sizes(shape: Shape, device: Device) -> None:
    """EngineError for what no kernel of ours can hold; head widths are checked by the plan."""
    longest = device.shared_limit // 4 - SAMPLING_FLOATS  # sampling holds a score for each place in shared memory
    rules = (("model.d_model", shape.d_model, WIDEST), ("model.context", shape.context, longest))
    for name, value, limit in rules:
        if value > limit:
            fix = 'make the model smaller, or write "engine": "cpu"'
            raise EngineError(
                f"{name} must be at most {limit:,} for the CUDA engine on {device.name}", got=value, fix=fix
            )


def check_engine_state(state: dict[str, Any]) -> tuple[float, list[int], str, dict[str, str]]:
    """The parts of a state; CheckpointError when they are not what state() gives."""
    try:
        scale, counters = float(state["loss_scale"]), [int(c) for c in state["counters"]]
        identity, algorithms = str(state["identity"]), dict(state["algorithms"])
        fits = (
            math.isfinite(scale) and scale >= 1 and len(counters) == 3 and 0 <= min(counters) <= max(counters) < 2**31
        )
        fits = fits and all(len(bytes.fromhex(a)) == ALGORITHM_BYTES for a in algorithms.values())
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        raise CheckpointError(
            "the CUDA engine's state must be whole", got=cause, fix="use another checkpoint"
        ) from cause
    if not fits:
        raise CheckpointError("the CUDA engine's state must be in range", got=state, fix="use another checkpoint")
    return scale, counters, identity, algorithms
