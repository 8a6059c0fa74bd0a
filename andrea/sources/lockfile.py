"""The lock file: what the hub said a data set is, once. Committed with the project, it makes every later pull the same.

    {"datasets": {"hermes3": {"repo", "revision", "files": [{"file", "size", "sha256"}, ...]}}}

`revision` is the full commit, `size` in bytes and `sha256` are the hub's own figures for each file at that commit, in the
order of the catalogue; where the hub has no sha256, it is that of the content, checked by git's id (hub.py).
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from andrea.errors import DataError
from andrea.files import read_json, sha256_bytes, sha256_file, write_json
from andrea.sources.catalogue import Dataset

_WHAT = "the lock file"


@dataclass(frozen=True)
class LockedFile:
    """One file of the hub at the locked commit; `size` in bytes."""

    file: str
    size: int
    sha256: str

    def check(self, path: Path, repo: str) -> None:
        """Raise DataError unless the file at `path` has the size and the sha256."""
        size = path.stat().st_size
        got = f"{size:,} bytes" if size != self.size else sha256_file(path)
        if got != self.sha256:
            raise DataError(
                f"{path} must be {self.file} of {repo}: {self.size:,} bytes with the sha256 {self.sha256}",
                got=got,
                fix="delete it and pull again, or put the right file there",
            )


@dataclass(frozen=True)
class Locked:
    """The files of one data set of the hub, pinned."""

    repo: str
    revision: str
    files: tuple[LockedFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def key(self) -> str:
        """Stands for the content of all files, in their order."""
        return sha256_bytes("\n".join(file.sha256 for file in self.files).encode())


def read_locked(lock: Path, dataset: Dataset) -> Locked | None:
    """What the lock file says of `dataset`; None when it says nothing of this revision and these files.

    Raises DataError for an entry that is damaged.
    """
    if not lock.exists():
        return None
    entries = read_json(lock, _WHAT).get("datasets")
    value = entries.get(dataset.name) if isinstance(entries, dict) else None
    if value is None:
        return None
    try:
        files = tuple(LockedFile(**file) for file in value["files"])
        locked = Locked(**{**value, "files": files})
    except (TypeError, KeyError) as cause:
        raise _bad(lock, dataset, value) from cause
    if not _is_sound(locked):
        raise _bad(lock, dataset, value)
    names = tuple(file.file for file in locked.files)
    pinned = (dataset.repo, dataset.revision, dataset.files)
    return locked if (locked.repo, locked.revision, names) == pinned else None


def _is_sound(locked: Locked) -> bool:
    texts = [locked.repo, locked.revision, *(text for file in locked.files for text in (file.file, file.sha256))]
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(file.size) is int and file.size >= 0 for file in locked.files)
        and all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in locked.files)
    )


def write_locked(lock: Path, dataset: Dataset, locked: Locked) -> None:
    """Put `locked` into the lock file, beside what it says of other data sets."""
    entries = read_json(lock, _WHAT).get("datasets") if lock.exists() else {}
    known = entries if isinstance(entries, dict) else {}
    write_json(lock, {"datasets": dict(sorted({**known, dataset.name: asdict(locked)}.items()))})


def _bad(lock: Path, dataset: Dataset, value: object) -> DataError:
    must = f'{lock}: "{dataset.name}" must hold repo, revision and files, each with file, size and sha256'
    return DataError(must, got=value, fix="delete the entry and pull again with a network")
