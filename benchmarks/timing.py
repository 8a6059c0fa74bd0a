"""Times on the card: work recorded as a graph, replayed, by events."""

from collections.abc import Callable, Sequence

import numpy as np

from andrea.engine.cuda.device import Device
from andrea.engine.cuda.nvrtc import INSTALL

try:
    import cupy
except ImportError as cause:
    raise SystemExit(f"error: this needs CuPy and an NVIDIA GPU ({cause})\n  fix: {INSTALL}") from cause

CALLS, REPLAYS = 20, 25  # at least so many calls in a graph


def microseconds(device: Device, sets: Sequence[Sequence[Callable[[], None]]]) -> tuple[float, float, float]:
    """Of one set of calls: percentiles 20, 50, 80. The sets, the same op on other buffers, take turns in the graph."""
    rounds = -(-CALLS // len(sets))
    for call in sets[0]:
        call()  # loads the kernels' code, which must not happen while capturing
    graph = device.record(lambda: [call() for _ in range(rounds) for calls in sets for call in calls])
    graph.launch(device.stream)
    each = []
    for _ in range(REPLAYS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(device.stream)
        graph.launch(device.stream)
        end.record(device.stream)
        end.synchronize()
        each.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / (rounds * len(sets)))
    low, middle, high = np.percentile(each, (20, 50, 80))
    return float(low), float(middle), float(high)
