"""Build the megachat of an experiment from raw shards: python scripts/prep-megachat.py --experiment FILE --out FOLDER."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a checkout that is not installed

from andrea.cli import find_experiment, run_safely
from andrea.experiment import load
from andrea.prepare import prepare


def main() -> int:
    parser = argparse.ArgumentParser(description="Filter, de-duplicate, split and write the text of an experiment.")
    parser.add_argument("--experiment", required=True, help="a file in experiments/, or its name: tiny, ANDREA-12M")
    parser.add_argument("--root", type=Path, default=Path(), help="the project, which holds data/raw/")
    parser.add_argument("--out", type=Path, help="folder for the megachat; else data/<EXP>/megachat in the project")
    args = parser.parse_args()

    def work() -> int:
        experiment = load(find_experiment(args.experiment))
        out = args.out or args.root / "data" / experiment.name / "megachat"
        prepare(experiment, args.root / "data" / "raw", out)
        return 0

    return run_safely(work)


if __name__ == "__main__":
    sys.exit(main())
