"""Token files for firehose_policies.py from JSONL of any origin, small enough to be carried to another machine.

    python benchmarks/firehose_data.py OUT books=books.jsonl.zst talk=chat.jsonl --megabytes 4.8

Each SOURCE=FILE becomes one source: documents spread evenly over the file, about `--megabytes` of raw JSON, pulled,
prepared and tokenised by the pipeline's own stages. Beside them stands one source that nobody can learn, `static`:
documents of random characters, each from an alphabet of its own size, so that its losses are loud as well as flat.
OUT then is a project folder with the experiment ANDREA-MIX, its tokenizer and its tokens; nothing else is kept.
"""

import argparse
import io
import json
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from andrea.experiment import SUFFIX, Experiment
from andrea.files import read_json, write_json
from andrea.philox import generator
from andrea.prepare import prepare
from andrea.sources.pull import pull
from andrea.tokenizer.stage import build
from andrea.tokens import encode_corpus

BASE = Path(__file__).resolve().parent.parent / "experiments" / f"ANDREA-12M{SUFFIX}.json"
NAME, STATIC = "ANDREA-MIX", "static"
SPEC = {"files": "", "min_characters": 1, "max_characters": 100000, "max_documents": None, "exclude_words": []}
LETTERS = string.ascii_lowercase + string.digits + string.ascii_uppercase


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a JSONL file, zstd or plain, with their ends."""
    with open(path, "rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        yield from io.BufferedReader(plain)  # type: ignore[arg-type,unused-ignore]


def spread(path: Path, size: int) -> Iterator[bytes]:
    """About `size` bytes of whole lines, evenly spread over the file."""
    share = min(1.0, size / sum(map(len, lines(path))))
    for number, line in enumerate(lines(path)):
        if int((number + 1) * share) > int(number * share):
            yield line


def static(size: int) -> Iterator[bytes]:
    """About `size` bytes of documents that hold nothing to be learned."""
    number = 0
    while size > 0:
        draws = generator(1, "static", number)
        alphabet = draws.permutation(list(LETTERS))[: int(2 ** draws.uniform(1, 6))]
        line = json.dumps({"text": "".join(draws.choice(alphabet, draws.integers(500, 8000)))}) + "\n"
        yield line.encode()
        size, number = size - len(line), number + 1


def experiment(sources: list[str], texts: Path) -> Experiment:
    """ANDREA-12M over these sources, without floors and without a warm-up of the curriculum."""
    value: dict[str, Any] = read_json(BASE, "the base experiment")
    value |= {"name": NAME, "description": "Sources of different kinds and sizes, to compare mixing policies."}
    value["sources"] = {name: SPEC | {"files": str(texts / name)} for name in sources}
    value["megachat"]["heldout_fraction"] = 0.08
    value["tokenizer"]["sample_bytes"] = 16_000_000
    value["firehose"]["weights"] = dict.fromkeys(sources, 1.0)
    bandit = value["firehose"]["bandit"]
    bandit |= {"floors": dict.fromkeys(sources, 0.0), "caps": dict.fromkeys(sources, 1.3)}
    bandit |= {"curriculum_warmup_steps": 0, "curriculum_warmup_sources": [], "focus_sources": [1, 3]}
    bandit["reward"]["slow_alpha"] = 0.01
    return Experiment.from_json(value, BASE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", nargs="+", metavar="SOURCE=FILE")
    parser.add_argument("--megabytes", type=float, default=4.8, help="of raw JSON a source, at most")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    size, files = int(1e6 * args.megabytes), dict(pair.split("=", 1) for pair in args.sources)
    streams = {name: spread(Path(file), size) for name, file in files.items()} | {STATIC: static(size // 2)}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        made = experiment(list(streams), work / "texts")
        for name, stream in streams.items():
            folder = work / "texts" / name
            folder.mkdir(parents=True)
            (folder / "text.jsonl").write_bytes(b"".join(stream))
            pull(name, work / "raw" / name / "local", lock=work / "lock.json", offline=True, files=folder)
        prepare(made, work / "raw", work / "megachat")
        data = args.out / "data" / NAME
        build(made, work / "megachat", data / "tokenizer")
        tokenizer = data / "tokenizer" / "tokenizer.json"
        encode_corpus(made, work / "megachat", tokenizer, data / "tokens", args.threads)
    value = made.to_json()
    value["sources"] = {name: SPEC | {"files": f"texts/{name}"} for name in streams}  # named, and no longer there
    write_json(args.out / "experiments" / f"{NAME}{SUFFIX}.json", value)
    total = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{args.out}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
