"""`andrea runs`: every run and every result of the project in one table, whatever state its files are in.

A damaged file costs its own row a cell, never the table. The history is read from its end, so that a long one costs
no more than a short one.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from andrea.checkpoint import steps_in
from andrea.errors import AndreaError, DataError
from andrea.experiment import load
from andrea.files import read_json, refuse_constant, require_file
from andrea.hooks import trainers
from andrea.paths import experiment_file
from andrea.progress import short_time
from andrea.terminal import in_line
from andrea.training.gate import HALTED
from andrea.training.runfolder import is_of_run

Row = dict[str, str]


class Last(NamedTuple):
    """The newest of a history: step, loss in nats per token, held-out bits per byte as a mean over the sources."""

    step: int
    loss: float | None
    bits: float | None


COLUMNS = ("run", "state", "step", "loss", "bits/byte", "age", "size")
_TAIL = 1 << 20  # bytes of the history that are read: some thousand steps


def table(root: Path) -> str:
    """The text of `andrea runs`. Runs are folders of runs/, results/ or both; a suffix is a fingerprint or .aside."""
    names = {path.name for top in ("runs", "results") for path in (root / top).glob("*") if path.is_dir()}
    if not names:
        return "no runs yet: .venv/bin/snakemake --cores all train_tiny makes the first one"
    held = trainers(root)
    rows = [{c: in_line(cell) for c, cell in _row(root, name, held.get(name)).items()} for name in sorted(names)]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in COLUMNS}
    lines = [{column: column for column in COLUMNS}, *rows]
    return "\n".join("  ".join(line[c].ljust(widths[c]) for c in COLUMNS).rstrip() for line in lines)


def _row(root: Path, name: str, pid: int | None) -> Row:
    row = dict.fromkeys(COLUMNS, "") | {"run": name}
    folders = [folder for folder in (root / "runs" / name, root / "results" / name) if folder.is_dir()]
    try:
        files = [path.lstat() for folder in folders for path in folder.rglob("*")]
        row["size"] = _size({(s.st_dev, s.st_ino): s.st_size for s in files}.values())
        row["age"] = short_time(time.time() - max((s.st_mtime for s in files), default=time.time()))
        row |= (
            _run_cells(root, name, pid) if folders[0].parent.name == "runs" else {"state": "results without their run"}
        )
    except (OSError, AndreaError) as cause:
        row["state"] = f"unreadable: {getattr(cause, 'must', cause)}"
    return row


def _run_cells(root: Path, name: str, pid: int | None) -> Row:
    folder, experiment = root / "runs" / name, name.partition(".")[0]
    steps, trouble, last = steps_in(folder / "checkpoints"), "", Last(0, None, None)
    try:
        last = _last_records(folder / f"{experiment}.loss.json")
    except DataError as cause:
        trouble = f"; {cause.must}"
    step = last.step if pid else steps[-1] if steps else 0
    return {
        "state": _state(root, name, pid, step) + trouble,
        "step": f"{step:,}{_of_how_many(root, name)}",
        "loss": "" if last.loss is None else f"{last.loss:.3f}",
        "bits/byte": "" if last.bits is None else f"{last.bits:.3f}",
    }


def _state(root: Path, name: str, pid: int | None, step: int) -> str:
    folder = root / "runs" / name
    if pid is not None:
        return f"training now, process {pid}"
    if "." in name:
        return "put aside"
    if (folder / HALTED).exists():
        require_file(folder / HALTED)
        return f"halted: {(folder / HALTED).read_text(errors='replace').partition('got: ')[2].partition(chr(10))[0] or '?'}"
    results = root / "results" / name
    if (results / "model.bin").exists() and is_of_run(
        read_json(results / "resolved.json", "the resolved experiment"), folder
    ):
        return "finished"
    return "stopped" if step else "began, nothing saved"


def _of_how_many(root: Path, name: str) -> str:
    """` of 5,000`; nothing for a run that the experiment of today says nothing about."""
    if "." in name:
        return ""
    try:
        return f" of {load(root / experiment_file(name)).train.steps:,}"
    except AndreaError:
        return " of ?"


def _last_records(path: Path) -> Last:
    """From the end of a history; DataError when it is not whole."""
    if not path.exists():
        return Last(0, None, None)
    require_file(path)
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        data = file.read()
    lines = (
        [] if data == b"[\n]\n" else data.removesuffix(b"\n]\n").split(b"\n")[1:]
    )  # the first is the bracket, or cut
    try:
        records = [json.loads(line.removesuffix(b","), parse_constant=refuse_constant) for line in lines]
        losses = [float(record["loss"]) for record in records if record.get("loss") is not None]
        held_out = [record["validation"].values() for record in records if record.get("validation")]
        bits = [fmean(rates["bits_per_byte"] for rates in each) for each in held_out]
        return Last(int(records[-1]["step"]) if records else 0, _last(losses), _last(bits))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as cause:
        raise DataError(
            f"{path.name} is damaged", got=cause, fix="the trainer repairs it when the run goes on"
        ) from cause


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None


def _size(sizes: Iterable[int]) -> str:
    total = sum(sizes)
    return f"{total / 1e9:,.1f} GB" if total >= 1e9 else f"{total / 1e6:,.1f} MB"
