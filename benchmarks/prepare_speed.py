"""How fast one core turns raw shards into megachat: MB of megachat text a second, on chitchat, several times over.

    python benchmarks/prepare_speed.py [--copies 5] [--profile]

Each copy carries its number in every document, so that none is a duplicate. Wanted: 20 MB/s.
"""

import argparse
import contextlib
import cProfile
import dataclasses
import io
import json
import pstats
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from andrea.experiment import Experiment, load
from andrea.megachat import Conversation, Turn
from andrea.prepare import prepare
from andrea.sources import chitchat
from andrea.sources.catalogue import find_dataset
from andrea.sources.shards import Shards

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "ANDREA-TINY-TRAIN.json"


def experiment() -> Experiment:
    """The tiny experiment with chitchat alone."""
    tiny = load(EXPERIMENT)
    return dataclasses.replace(tiny, sources={"chitchat": tiny.sources["chitchat"]})


def write_raw(root: Path, copies: int) -> None:
    """Raw shards of chitchat, `copies` times over."""
    dataset = find_dataset("chitchat")
    shards = Shards(root / dataset.name / dataset.revision, dataset.buckets, "benchmark")
    documents = [item.parsed.document for item in chitchat.feed(dataset).items if item.parsed is not None]
    for copy in range(copies):
        for document in documents:
            assert isinstance(document, Conversation)
            shards.add("all", Conversation((*document.turns, Turn("user", str(copy)))))
    facts = {key: getattr(dataset, key) for key in ("revision", "kind", "licence", "provenance")}
    shards.finish({"dataset": dataset.name, **facts})


def measure(root: Path, profile: bool) -> float:
    """CPU seconds of one preparation, which uses one thread: other work on the machine counts little."""
    profiler = cProfile.Profile()
    began = time.process_time()
    with profiler if profile else contextlib.nullcontext(), contextlib.redirect_stderr(io.StringIO()):
        prepare(experiment(), root / "raw", root / "megachat")
    seconds = time.process_time() - began
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(15)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_raw(root / "raw", args.copies)
        seconds = sorted(measure(root, args.profile) for _ in range(1 if args.profile else 3))
        totals = json.loads((root / "megachat" / "manifest.json").read_text())["totals"]
    megabytes = (totals["train"]["bytes"] + totals["heldout"]["bytes"]) / 1e6
    print(
        f"{megabytes:.1f} MB of megachat text, per second of one core: "
        + ", ".join(f"{megabytes / s:.1f}" for s in seconds)
        + " MB/s"
    )


if __name__ == "__main__":
    main()
