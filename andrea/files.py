"""Files that are whole or absent: atomic writes, checked reads, hashes.

A reader sees the old bytes or the new ones, never half of each, also after a power cut: the temporary
file is flushed before the rename, and the folder after it.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from andrea.errors import DataError, StorageError

LARGEST_JSON = 64 << 20  # bytes; of our own files a state is the largest, with a bit a document
_HINTS = {
    errno.ENOSPC: "free some space on that disk, then type the same command again",
    errno.EDQUOT: "free some of your quota, then type the same command again",
    errno.EROFS: "the disk is mounted read-only: mount it for writing or work in another folder",
    errno.EACCES: "give yourself the right to write there (ls -ld shows the owner)",
    errno.EPERM: "give yourself the right to write there (ls -ld shows the owner)",
    errno.ENOTDIR: "a part of that path is a file where a folder is needed: move it away",
    errno.EEXIST: "a file lies where a folder is needed: move it away",
    errno.EISDIR: "a folder lies where a file is needed: move it away",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ELOOP: "its symbolic links lead in a circle: move them away",
    errno.EBUSY: "it is in use, as a working folder perhaps: name another one",
    errno.ENOTEMPTY: "something has come into that folder meanwhile: name another one",
    errno.EIO: "the disk reports a hardware error: check it before anything else",
}


@contextmanager
def storing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's refusals to write under `path` into a StorageError; other errors pass."""
    try:
        yield
    except OSError as cause:
        refused = refusal(f"{path} must be writable", cause)
        if refused is None:
            raise
        raise refused from cause


def refusal(must: str, cause: OSError) -> StorageError | None:
    """The error for what the system has refused; None when that is no mistake that a user can mend."""
    hint = _HINTS.get(cause.errno or 0)
    return None if hint is None else StorageError(must, got=cause.strerror or cause, fix=hint)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well, and vanishes when it does not."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace `path` by `data` in one step."""
    with atomic_file(path) as file:
        file.write(data)


def to_json(value: Any) -> bytes:
    """Indented JSON with a final newline; NaN and infinities are refused."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replace `path` by `value` as JSON in one step."""
    write_atomic(path, to_json(value))


def require_file(path: Path) -> None:
    """DataError when something lies at `path` that is no file: reading a folder fails, reading a pipe never ends."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} must be a file", got="something else (ls -ld says what)", fix="move it away")


def refuse_constant(constant: str) -> None:
    """For json.loads, which takes NaN and infinities, and which no JSON may hold."""
    raise ValueError(f"{constant}, which is not JSON")


def read_json(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a JSON object. `what` names the file in the error: "the tokens manifest"."""
    require_file(Path(path))
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_JSON + 1)  # parsed, it takes many times the memory
        if len(data) > LARGEST_JSON:
            raise ValueError(f"more than {LARGEST_JSON >> 20} MiB")
        value = json.loads(data, parse_constant=refuse_constant)
    except FileNotFoundError as cause:
        raise DataError(
            f"{what} must exist at {path}",
            got="no such file",
            fix=f"Snakemake makes it: .venv/bin/snakemake --cores all {_target(Path(path))}",
        ) from cause
    except PermissionError as cause:
        raise DataError(f"{what} must be readable: {path}", got=cause.strerror, fix="ls -l shows its owner") from cause
    except (ValueError, RecursionError) as cause:
        raise DataError(f"{what} must be JSON in UTF-8: {path}", got=cause, fix="delete it and make it anew") from cause
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise DataError(f"{what} must be a JSON object: {path}", got=f"a {kind}", fix="delete it and make it anew")
    return cast(dict[str, Any], value)


def _target(path: Path) -> str:
    """What makes a file in an experiment's folder, as in data/ANDREA-12M/tokens/: train_12m."""
    names = [part for part in path.parts if part.startswith("ANDREA-")] or ["ANDREA-TINY"]
    return "train_" + names[-1].split(".")[0].removeprefix("ANDREA-").lower().replace("-", "_")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_free(path: str | os.PathLike[str], n_bytes: int, what: str) -> None:
    """Raise StorageError unless the disk that holds `path` has `n_bytes` free for `what`."""
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise StorageError(
            f"{what} needs {n_bytes / 1e6:,.1f} MB on the disk of {path}",
            got=f"{free / 1e6:,.1f} MB free",
            fix="free some space, or work in a folder on a larger disk",
        )
