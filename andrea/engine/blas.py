"""NumPy's own BLAS: which one it is, and one thread for it while our threads share the work."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np  # noqa: F401  (loads the library that is looked for)
from threadpoolctl import ThreadpoolController


@cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")


def one_thread() -> AbstractContextManager[Any]:
    """While it lasts the BLAS uses one thread a call."""
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit


def versions() -> dict[str, str]:
    """Name, version and core type of the library."""
    for info in _controller().info():
        return {
            "blas": f"{info['internal_api']} {info['version']}",
            "blas_core": str(info.get("architecture", "unknown")),
        }
    return {"blas": "unknown", "blas_core": "unknown"}


def describe() -> str:
    """For the line at the start."""
    return " ".join(versions().values())
