"""Where compiled loops are kept.

Numba's cache looks at the file of the compiled function only: an edit of a function that it calls in another file,
or another BLAS core type, would leave old code in use. So the folder is named by the hash of everything that the
compiled code depends on. NUMBA_CACHE_DIR is respected.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numba

from andrea.engine import blas, kernels
from andrea.errors import EngineError

KEPT = 4  # folders: versions of the code, or types of core on a shared disk


def folder() -> Path:
    """The folder of this version's compiled loops."""
    return _base(numba.config.CACHE_DIR) / f"loops-{_digest()}"


@contextmanager
def own_cache() -> Iterator[None]:
    """Functions that are decorated inside keep their compiled code in our folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def drop_old() -> None:
    """Remove all but the folders that were used last; this version's counts as used now."""
    with suppress(OSError):  # someone else tidies at this moment, or the folder is not ours: both no reason to stop
        os.utime(folder())
        by_age = sorted(folder().parent.glob("loops-*"), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-KEPT]:
            shutil.rmtree(old)


def _base(configured: str) -> Path:
    """The first folder that can be written: NUMBA_CACHE_DIR, beside the sources, the user's cache."""
    if configured:
        return Path(configured)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for place in (Path(__file__).parent / "__pycache__", home / "andrea"):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK):
            return place
    raise EngineError(
        "compiled loops need a folder that can be written",
        got=f"neither the package nor {home} can",
        fix="set NUMBA_CACHE_DIR to a folder of yours",
    )


def _digest() -> str:
    """Hash of the loops' sources and of what they are built on."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(kernels.__file__), Path(blas.__file__)]
    state = hashlib.blake2b(digest_size=8)
    for source in sources:
        state.update(source.read_bytes())
    state.update(repr((blas.describe(), blas.has_small_kernels())).encode())
    return state.hexdigest()
