"""The table of results, benchmarks/results.csv: its columns, and how a benchmark adds to it."""

import csv
import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path

COLUMNS = ("what", "shape", "dtype", "ms_p20", "ms_p50", "ms_p80", "rate", "unit", "gpu", "versions", "date")


def row(
    what: str, shape: str, dtype: str, ms: Iterable[float], rate: str, unit: str, versions: Mapping[str, str]
) -> dict[str, object]:
    """One row with today's date. `ms` are the percentiles 20, 50, 80; `versions` names the "gpu" and what runs on it."""
    text = ", ".join(f"{key} {value}" for key, value in versions.items() if key != "gpu")
    values = (what, shape, dtype, *(f"{t:.4f}" for t in ms), rate, unit, versions["gpu"], text)
    return dict(zip(COLUMNS, (*values, datetime.date.today().isoformat()), strict=True))


def append(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Add rows, each with all COLUMNS; a new table gets its header first."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
