"""The checkpoint format: round trip, and every kind of damage told apart from a good file."""

import dataclasses
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea import checkpoint as ck
from andrea.checkpoint import Checkpoint, Manifest, bin_path, load, manifest_path, read, state_path, steps_in, write
from andrea.errors import CheckpointError, StorageError

N = 37


def example(step: int = 12) -> Checkpoint:
    rng = np.random.default_rng(step)
    return Checkpoint(step, *(rng.standard_normal(N).astype(np.float32) for _ in range(3)))


def save(folder: Path, step: int = 12) -> Path:
    stamp: dict[str, Any] = {"fingerprint": "f" * 64, "versions": {"numpy": "2"}, "records": {"history": step}}
    write(folder, example(step), {"step": step}, **stamp)
    return bin_path(folder, step)


def test_the_file_is_the_seeds_format(tmp_path: Path) -> None:
    """Other tools read it: int32 step, int32 n, weights, m, v, little-endian, nothing else."""
    path, state = save(tmp_path), example()
    expected = struct.pack("<ii", 12, N) + b"".join(
        a.astype("<f4").tobytes() for a in (state.weights, state.m, state.v)
    )
    assert path.name == "step_000012.bin"
    assert path.read_bytes() == expected
    assert len(expected) == ck.size_of(N)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    """NaN, infinities, denormals and -0.0 in the moments must come back as the same bits."""
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    ck.write_model(tmp_path / "x.bin", Checkpoint(1, odd, odd, odd))
    assert read(tmp_path / "x.bin").m.tobytes() == odd.tobytes()
    state, extra, manifest = load(save(tmp_path), N)
    assert [a.tobytes() for a in (state.weights, state.m, state.v)] == [
        a.tobytes() for a in (example().weights, example().m, example().v)
    ]
    assert extra == {"step": 12}
    assert manifest.records == {"history": 12}


def test_steps_with_more_digits_and_their_order(tmp_path: Path) -> None:
    """By name, step_1000000 sorts before step_999999."""
    for step in (1_000_000, 999_999, 0):
        save(tmp_path, step)
    (tmp_path / "step_000005.bin").touch()
    assert steps_in(tmp_path) == [0, 999_999, 1_000_000]
    assert bin_path(tmp_path, 1_000_000).name == "step_1000000.bin"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def edit_manifest(path: Path, **fields: Any) -> None:
    value = json.loads(manifest_path(path).read_text())
    manifest_path(path).write_text(json.dumps(value | fields))


def restate(path: Path, data: bytes) -> None:
    """Another state, which the manifest knows of."""
    state_path(path).write_bytes(data)
    edit_manifest(path, state={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})


DAMAGE = {
    "bit flipped in the weights": lambda p: flip(p, 8),
    "bit flipped in v": lambda p: flip(p, ck.size_of(N) - 1),
    "bit flipped in the step": lambda p: flip(p, 0),
    "torn at half": lambda p: cut(p, ck.size_of(N) // 2),
    "one byte short": lambda p: cut(p, ck.size_of(N) - 1),
    "less than a header": lambda p: cut(p, 5),
    "empty": lambda p: cut(p, 0),
    "bytes after the end": lambda p: p.write_bytes(p.read_bytes() + b"\0" * 12),
    "not a checkpoint at all": lambda p: p.write_bytes(b"PK\3\4 hello"),
    "no .bin": lambda p: p.unlink(),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "state a list": lambda p: restate(p, b"[1]"),
    "no state": lambda p: state_path(p).unlink(),
    "state edited": lambda p: state_path(p).write_text('{"step": 13}'),
    "no manifest": lambda p: manifest_path(p).unlink(),
    "manifest torn": lambda p: cut(manifest_path(p), 40),
    "manifest a list": lambda p: manifest_path(p).write_text("[]"),
    "manifest with too little": lambda p: manifest_path(p).write_text("{}"),
    "manifest of another format": lambda p: edit_manifest(p, format="other"),
    "manifest of another step": lambda p: edit_manifest(p, step=13),
    "manifest with a negative count": lambda p: edit_manifest(p, n_params=-1),
    "manifest with a text for a count": lambda p: edit_manifest(p, n_params="37"),
    "manifest with odd parts": lambda p: edit_manifest(p, parts={"weights": 3}),
    "manifest with odd records": lambda p: edit_manifest(p, records={"history": "x"}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_every_damage_is_a_checkpoint_error(tmp_path: Path, damage: Any) -> None:
    """A reader that believes such a file trains on rubbish, or ends in a traceback."""
    path = save(tmp_path)
    load(path, N)
    damage(path)
    with pytest.raises(CheckpointError):
        load(path, N)


def test_the_reader_alone_checks_header_and_size(tmp_path: Path) -> None:
    """A hostile header must not make it allocate what the file does not have."""
    path = tmp_path / "x.bin"
    for step, count, size in ((1, 2**31 - 1, 100), (-1, 2, 32), (1, 0, 8), (1, -5, 8), (1, 2, 31)):
        path.write_bytes(struct.pack("<ii", step, count).ljust(size, b"\0"))
        with pytest.raises(CheckpointError, match="whole checkpoint"):
            read(path)
    ck.write_model(path, example())
    with pytest.raises(CheckpointError, match="36 parameters"):
        read(path, 36)


def test_an_interrupted_rewrite_leaves_no_valid_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old manifest beside a new .bin would be believed, or lose both."""
    path = save(tmp_path)

    def fail(*_: object) -> None:
        raise StorageError("x", got="x", fix="x")

    monkeypatch.setattr(ck, "write_atomic", fail)
    with pytest.raises(StorageError):
        save(tmp_path)
    assert steps_in(tmp_path) == []
    assert path.exists()


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """A field that is dropped on the way would weaken a check."""
    path = save(tmp_path)
    manifest = Manifest.read(manifest_path(path))
    assert dataclasses.asdict(manifest) == json.loads(manifest_path(path).read_text())
