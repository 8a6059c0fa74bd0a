"""A checkpoint on disk: the training state, its small state file, and a manifest, written last.

    step_NNNNNN.bin           int32 step, int32 n, then n float32 weights, n float32 m, n float32 v; all little-endian
    step_NNNNNN.state.json    where the run stands: window, pulls, bandit (see training/position.py)
    step_NNNNNN.json          the manifest: sizes and sha256 of the parts, fingerprint, versions

A checkpoint without its manifest does not exist. `read` needs the .bin alone and believes only its size; `load` goes
by the manifest and checks every byte.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from andrea.errors import CheckpointError, DataError
from andrea.files import LARGEST_JSON, atomic_file, read_json, require_file, storing, to_json, write_atomic, write_json

FORMAT = "andrea-checkpoint-1"
HEADER = np.dtype("<i4")
FLOAT = np.dtype("<f4")
PARTS = ("header", "weights", "m", "v")
_MANIFEST_NAME = re.compile(r"step_(\d{6,10})\.json")

Flat = NDArray[np.float32]


@dataclass(frozen=True)
class Checkpoint:
    """A training state; `weights`, `m` and `v` are flat (n,) float32 in layout order."""

    step: int
    weights: Flat
    m: Flat
    v: Flat

    def parts(self) -> dict[str, memoryview]:
        """The file's bytes by part, in file order."""
        header = np.array([self.step, self.weights.size], HEADER)
        arrays = (header, *(np.ascontiguousarray(a, FLOAT) for a in (self.weights, self.m, self.v)))
        return {name: array.data.cast("B") for name, array in zip(PARTS, arrays, strict=True)}


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint promises. `parts` and `state` map to {bytes, sha256}; `records` counts those in the run files."""

    step: int
    n_params: int
    parts: dict[str, dict[str, Any]]
    state: dict[str, Any]
    fingerprint: str
    versions: dict[str, str]
    records: dict[str, int]
    format: str = FORMAT

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a manifest; CheckpointError when it is missing or not one of ours."""
        try:
            value = read_json(path, "the checkpoint's manifest")
            manifest = cls(**value)
        except (DataError, TypeError) as cause:
            raise _damaged(path, getattr(cause, "got", cause)) from cause
        manifest._check(path)
        return manifest

    def _check(self, path: Path) -> None:
        sizes = [size_of(self.n_params)] if _is_count(self.n_params) else []
        holds = (
            self.format == FORMAT
            and _is_count(self.step)
            and all(map(_is_size, [*_values(self.parts), self.state]))
            and list(self.parts) == list(PARTS)
            and [sum(part["bytes"] for part in self.parts.values())] == sizes
            and isinstance(self.fingerprint, str)
            and isinstance(self.versions, dict)
            and isinstance(self.records, dict)
            and all(map(_is_count, self.records.values()))
        )
        if not holds:
            raise _damaged(path, "fields that do not fit together")


def size_of(n_params: int) -> int:
    """Bytes of a .bin."""
    return 8 + 12 * n_params


def bin_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06d}.bin"


def manifest_path(binary: Path) -> Path:
    return binary.with_suffix(".json")


def state_path(binary: Path) -> Path:
    return binary.with_suffix(".state.json")


def steps_in(folder: Path) -> list[int]:
    """Steps that have a manifest, in order."""
    found = (_MANIFEST_NAME.fullmatch(path.name) for path in folder.glob("step_*.json"))
    return sorted(int(match[1]) for match in found if match)


def write_model(path: Path, checkpoint: Checkpoint) -> None:
    """Write the .bin alone, atomically. StorageError when the disk refuses."""
    with atomic_file(path) as file:
        for part in checkpoint.parts().values():
            file.write(part)


def write(
    folder: Path,
    checkpoint: Checkpoint,
    state: Mapping[str, Any],
    *,
    fingerprint: str,
    versions: Mapping[str, str],
    records: Mapping[str, int],
) -> Manifest:
    """Write the three files of one checkpoint, the manifest last; an older manifest of the step goes first."""
    binary, state_bytes = bin_path(folder, checkpoint.step), to_json(state)
    manifest = Manifest(
        step=checkpoint.step,
        n_params=checkpoint.weights.size,
        parts={name: _size(data) for name, data in checkpoint.parts().items()},
        state=_size(state_bytes),
        fingerprint=fingerprint,
        versions=dict(versions),
        records=dict(records),
    )
    with storing(folder):
        manifest_path(binary).unlink(missing_ok=True)
    write_model(binary, checkpoint)
    write_atomic(state_path(binary), state_bytes)
    write_json(manifest_path(binary), asdict(manifest))
    return manifest


def read(path: Path, n_params: int | None = None) -> Checkpoint:
    """Read a .bin by itself. CheckpointError unless header, file size and (if given) `n_params` agree."""
    with _reading(path) as file:
        step, count = _read_header(path, file)
        if n_params is not None and count != n_params:
            raise CheckpointError(
                f"{path} must hold the experiment's {n_params:,} parameters",
                got=f"{count:,}",
                fix="use a checkpoint of this experiment, or set its model section back",
            )
        return Checkpoint(step, *(_read_vector(file, count) for _ in range(3)))


def read_weights(path: Path, n_params: int) -> tuple[int, Flat]:
    """Step and weights (n_params,) of a .bin, without the two thirds that only training needs. CheckpointError as for `read`."""
    with _reading(path) as file:
        step, count = _read_header(path, file)
        if count != n_params:  # before memory is asked for: a sparse file of 25 GB costs nothing
            raise CheckpointError(
                f"{path} must hold the {n_params:,} parameters that its experiment says",
                got=f"{count:,}",
                fix="put back the model that belongs to it: it was copied from another run, or is damaged",
            )
        weights = _read_vector(file, count)
    if not np.isfinite(weights).all():
        raise _damaged(path, "weights that are not all finite")
    return step, weights


def _read_header(path: Path, file: BinaryIO) -> tuple[int, int]:
    """(step, parameters); the file's size must fit them."""
    size = file.seek(0, 2)
    file.seek(0)
    if size < 8:
        raise _damaged(path, f"{size} bytes, less than its header")
    step, count = map(int, np.fromfile(file, HEADER, 2))
    if step < 0 or count < 1 or size != size_of(count):
        raise _damaged(path, f"step {step}, {count} parameters and {size:,} bytes, which do not fit together")
    return step, count


def _read_vector(file: BinaryIO, count: int) -> Flat:
    return np.fromfile(file, FLOAT, count).astype(np.float32, copy=False)


def load(path: Path, n_params: int) -> tuple[Checkpoint, dict[str, Any], Manifest]:
    """Read a checkpoint by its manifest and verify all of it. CheckpointError says what is wrong."""
    manifest = Manifest.read(manifest_path(path))
    checkpoint = read(path, n_params)
    found = {name: _size(data) for name, data in checkpoint.parts().items()}
    wrong = [name for name in PARTS if found[name] != manifest.parts[name]]
    if wrong or manifest.step != checkpoint.step:
        raise _damaged(path, f"other bytes than its manifest says ({', '.join(wrong) or 'step'})")
    return checkpoint, _load_state(state_path(path), manifest), manifest


def _load_state(path: Path, manifest: Manifest) -> dict[str, Any]:
    with _reading(path) as file:
        data = file.read(LARGEST_JSON + 1)
    if _size(data) != manifest.state:
        raise _damaged(path, "other bytes than its manifest says")
    state = json.loads(data)
    if not isinstance(state, dict):
        raise _damaged(path, f"a {type(state).__name__}")
    return state


def _reading(path: Path) -> BinaryIO:
    try:
        require_file(path)
        return open(path, "rb")
    except (OSError, DataError) as cause:
        raise _damaged(path, getattr(cause, "got", cause)) from cause


def _damaged(path: Path, got: object) -> CheckpointError:
    return CheckpointError(
        f"{path} must be a whole checkpoint file", got=got, fix="use another checkpoint; this one is damaged"
    )


def _size(data: bytes | memoryview) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else [None]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"bytes", "sha256"} and _is_count(value["bytes"])
