"""A few threads that run numbered tasks. Which thread runs which task has no bearing on any result."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Workers:
    """`threads` threads, the caller's included."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "andrea-cpu") if threads > 1 else None

    def each(self, tasks: int, run: Callable[[int], None]) -> None:
        """run(0) ... run(tasks - 1), and wait for all; the first exception is raised when all have ended."""
        strands = min(self.threads, tasks)

        def strand(first: int) -> None:
            # a number that is not finite is found in the loss and the norm, not by a warning
            with np.errstate(all="ignore"):
                for task in range(first, tasks, strands):
                    run(task)

        others = [self._pool.submit(strand, first) for first in range(1, strands)] if self._pool else []
        try:
            strand(0)
        finally:
            for future in others:
                future.result()
