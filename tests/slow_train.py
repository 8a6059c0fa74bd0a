"""`andrea train` with the CPU engine at 10 ms a step or more: on any machine, a stop at a random moment finds it at work."""

import sys
import time

import numpy as np
from numpy.typing import NDArray

from andrea.cli import main
from andrea.engine.cpu import CpuEngine

SECONDS = 0.01
Floats = NDArray[np.float32]
_run = CpuEngine.run


def slowly(engine: CpuEngine, batches: NDArray[np.int32], lrs: NDArray[np.float64]) -> tuple[Floats, Floats]:
    result = _run(engine, batches, lrs)
    time.sleep(SECONDS * len(lrs))
    return result


CpuEngine.run = slowly  # type: ignore[method-assign]
sys.exit(main(["train", *sys.argv[1:]]))
