"""The table of results, benchmarks/results.csv: its columns, and how a benchmark adds to it."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

COLUMNS = ("what", "shape", "dtype", "ms_p20", "ms_p50", "ms_p80", "rate", "unit", "gpu", "versions", "date")


def append(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Add rows, each with all COLUMNS; a new table gets its header first."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
