"""The lock file: what the hub said a data set is, once. Committed with the project, it makes every later pull the same.

    {"datasets": {"hermes3": {"repo", "revision", "file", "size", "sha256"}}}

`revision` is the full commit, `size` in bytes and `sha256` are the hub's own figures for the file at that commit.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from andrea.errors import DataError
from andrea.files import read_json, sha256_file, write_json
from andrea.sources.catalogue import Dataset

_WHAT = "the lock file"


@dataclass(frozen=True)
class Locked:
    """One file of the hub, pinned."""

    repo: str
    revision: str
    file: str
    size: int
    sha256: str

    def check(self, path: Path) -> None:
        """Raise DataError unless the file at `path` has the size and the sha256."""
        size = path.stat().st_size
        got = f"{size:,} bytes" if size != self.size else sha256_file(path)
        if got != self.sha256:
            raise DataError(
                f"{path} must be {self.file} of {self.repo}: {self.size:,} bytes with the sha256 {self.sha256}",
                got=got,
                fix="delete it and pull again, or put the right file there",
            )


def read_locked(lock: Path, dataset: Dataset) -> Locked | None:
    """What the lock file says of `dataset`; None when it says nothing of this revision. Raises DataError."""
    if not lock.exists():
        return None
    entries = read_json(lock, _WHAT).get("datasets")
    value = entries.get(dataset.name) if isinstance(entries, dict) else None
    if value is None:
        return None
    try:
        locked = Locked(**value)
    except TypeError as cause:
        raise _bad(lock, dataset, value) from cause
    texts = (locked.repo, locked.revision, locked.file, locked.sha256)
    sound = all(isinstance(text, str) for text in texts) and type(locked.size) is int and locked.size >= 0
    if not sound or not re.fullmatch("[0-9a-f]{64}", locked.sha256):
        raise _bad(lock, dataset, value)
    pinned = (dataset.repo, dataset.revision, dataset.file)
    return locked if (locked.repo, locked.revision, locked.file) == pinned else None


def write_locked(lock: Path, dataset: Dataset, locked: Locked) -> None:
    """Put `locked` into the lock file, beside what it says of other data sets."""
    entries = read_json(lock, _WHAT).get("datasets") if lock.exists() else {}
    known = entries if isinstance(entries, dict) else {}
    write_json(lock, {"datasets": dict(sorted({**known, dataset.name: asdict(locked)}.items()))})


def _bad(lock: Path, dataset: Dataset, value: object) -> DataError:
    must = f'{lock}: "{dataset.name}" must hold repo, revision, file, size and sha256'
    return DataError(must, got=value, fix="delete the entry and pull again with a network")
