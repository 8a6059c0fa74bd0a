"""report stage: `results/<EXP>/report.html`, one page about a whole run that needs no network and no other file.

Everything read here was written by other programs and is checked field by field; all text is escaped.
"""

from pathlib import Path

from andrea.experiment import Experiment
from andrea.files import write_atomic
from andrea.paths import report_file
from andrea.report.page import render


def build(experiment: Experiment, root: Path) -> None:
    """Write the report of a finished run; raises DataError when one of its files is missing or broken."""
    write_atomic(root / report_file(experiment), render(experiment, root).encode(errors="replace"))
