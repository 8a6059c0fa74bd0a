"""Fetch Hermes-3 from the hub into shards of three buckets: python scripts/pull-hermes3.py [--preview N] [--offline].

Works again without a network once it has run: from the lock file and the downloaded file, both checked.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a checkout that is not installed

from andrea.cli import run_safely
from andrea.sources.catalogue import find_dataset
from andrea.sources.pull import preview, pull

NAME = "hermes3"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch Hermes-3 from the hub into shards of three buckets.")
    parser.add_argument("--out", type=Path, help="folder for the shards; else data/raw/hermes3/<revision>")
    parser.add_argument("--lock", type=Path, default=Path("workflow/sources.lock.json"), help="the lock file")
    parser.add_argument("--preview", type=int, metavar="N", help="print the first N rows from the hub and stop")
    parser.add_argument("--offline", action="store_true", help="use only what is already on this disk")
    args = parser.parse_args()

    def work() -> int:
        if args.preview is not None:
            for text in preview(NAME, args.preview, lock=args.lock):
                print(text)
            return 0
        out = args.out or Path("data/raw") / NAME / find_dataset(NAME).revision
        pull(NAME, out, lock=args.lock, offline=args.offline, files=None)
        return 0

    return run_safely(work)


if __name__ == "__main__":
    sys.exit(main())
