"""archive stage: `results/<EXP>/archive/<step>/`, one folder that can be kept or given away as it is.

Per archived step: the run's samples and state; at the last step also model, tokenizer and resolved experiment; a
manifest with hashes, licences and provenance. The loss history is never archived. Nothing is ever overwritten or
deleted: where a retraining brings other bytes for the same step, the old folder is renamed with a suffix first.
"""

import shutil
import struct
from pathlib import Path
from typing import Any

from andrea import __version__
from andrea.checkpoint import size_of
from andrea.errors import DataError, RunError
from andrea.experiment import Experiment
from andrea.files import (
    atomic_file,
    read_json,
    require_free,
    sha256_bytes,
    sha256_file,
    storing,
    write_atomic,
    write_json,
)
from andrea.paths import archived_steps
from andrea.training.runfolder import free_name

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"  # survives when Snakemake deletes the manifest before a rerun; `sha256sum -c` reads it
RESULTS = ("model.bin", "resolved.json", "tokenizer.json")
PROVENANCE = ("dataset", "bucket", "revision", "licence", "provenance")


def archive(experiment: Experiment, root: Path) -> None:
    """Copy every archived step of the run to results/; raises RunError or DataError when something is missing."""
    name, last = experiment.name, experiment.train.steps
    steps = archived_steps(root / "runs" / name)
    if last not in steps:
        raise RunError(
            f"the run of {name} must have archived its last step, {last}",
            got=f"archived steps {steps}",
            fix=f".venv/bin/andrea train {experiment.path}",
        )
    results = root / "results" / name
    check_model(results / "model.bin", last)
    made_with = read_json(results / "resolved.json", "the resolved experiment").get("made_with")
    facts = {"experiment": name, "andrea": __version__, "made_with": made_with, "sources": provenance(root, name)}
    for step in steps:
        files = _run_files(root / "runs" / name / "archive" / str(step))
        if step == last:
            files |= {file: results / file for file in RESULTS}
        _store(files, results / "archive" / str(step), facts | {"step": step})


def check_model(path: Path, step: int) -> None:
    """Raise DataError unless `path` is a model of that step: int32 step, int32 n, then 3 n float32."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            found, count = struct.unpack("<ii", file.read(8))
    except (OSError, struct.error) as cause:
        raise DataError(f"{path} must be a model", got=cause, fix="delete it and train again: it is remade") from cause
    if found != step or count < 1 or size != size_of(count):
        got = f"step {found}, {count} parameters, {size} bytes"
        raise DataError(f"{path} must be the model of step {step}", got=got, fix="delete it and train again")


def provenance(root: Path, name: str) -> dict[str, dict[str, Any]]:
    """source -> where its text came from and under which licence, out of the megachat manifest."""
    path = root / "data" / name / "megachat" / MANIFEST
    sources = read_json(path, "the megachat manifest").get("sources")
    if not isinstance(sources, dict) or not all(isinstance(facts, dict) for facts in sources.values()):
        raise DataError(f"{path} must name its sources", got=type(sources).__name__, fix="delete it: it is remade")
    return {source: {key: facts.get(key) for key in PROVENANCE} for source, facts in sources.items()}


def _run_files(folder: Path) -> dict[str, Path]:
    return {p.name: p for p in sorted(folder.iterdir()) if p.is_file() and ".loss." not in p.name and p.name[0] != "."}


def _store(files: dict[str, Path], target: Path, facts: dict[str, Any]) -> None:
    sums = {name: sha256_file(path) for name, path in files.items()}
    present = {p.name: sha256_file(p) for p in _own_files(target)}
    if any(present.get(name, digest) != digest for name, digest in sums.items()):
        _set_aside(target, present)
        present = {}
    missing = {name: path for name, path in files.items() if name not in present}
    if not missing and (target / MANIFEST).exists():
        return  # complete: what it says about its making stays, whatever the run became later
    require_free(target, sum(path.stat().st_size for path in missing.values()), "the archive")
    for name, path in missing.items():
        with open(path, "rb") as source, atomic_file(target / name) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    sums = present | sums  # an earlier call may have stored the model of this step
    write_atomic(target / SUMS, _sums_text(sums).encode())
    listed = {name: {"sha256": sums[name], "bytes": (target / name).stat().st_size} for name in sorted(sums)}
    write_json(target / MANIFEST, facts | {"files": listed})


def _own_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in sorted(folder.iterdir()) if p.is_file() and p.name not in (MANIFEST, SUMS) and p.name[0] != "."]


def _sums_text(sums: dict[str, str]) -> str:
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def _set_aside(folder: Path, sums: dict[str, str]) -> None:
    """Rename `folder` to <step>.<hash of its content>; its bytes stay."""
    aside = free_name(folder, sha256_bytes(_sums_text(sums).encode())[:8])
    with storing(folder):
        folder.rename(aside)
    print(f"{folder} holds another model: kept as {aside.name}")
