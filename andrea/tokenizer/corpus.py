"""The megachat as the tokenizer and tokens stages read it: checked against its manifest, and samples of it.

A sample of a file is documents spread evenly over it, so that a file sorted in any way gives a fair one, and the same
one every time. Sources get shares of the sample like their weights in training; what a short source cannot fill goes
to the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from andrea import megachat
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.files import read_json, sha256_file

SPLITS = ("train", "heldout")


@dataclass(frozen=True)
class Split:
    """One source's train or held-out documents. `bytes` is UTF-8 of the documents."""

    path: Path
    documents: int
    bytes: int

    def read(self) -> Iterator[str]:
        return megachat.read(self.path)


Corpus = Mapping[str, Mapping[str, Split]]  # source -> "train" | "heldout" -> Split


def open_corpus(experiment: Experiment, megachat_dir: Path) -> Corpus:
    """The experiment's megachat. Raises DataError when a file is missing or is not what its manifest says."""
    manifest = read_json(megachat_dir / "manifest.json", "the megachat manifest")
    return {
        source: {split: _open(megachat_dir, manifest, source, split) for split in SPLITS}
        for source in experiment.sources
    }


def _open(folder: Path, manifest: Mapping[str, Any], source: str, split: str) -> Split:
    try:
        entry = manifest["sources"][source][split]
        name, sha256, documents, size = (entry[key] for key in ("file", "sha256", "documents", "bytes"))
    except (KeyError, TypeError):
        _refuse(folder, f"a manifest without {split} text of {source}")
    path = folder / f"{source}.{split}.txt.zst"
    if name != path.name or type(documents) is not int or type(size) is not int or min(documents, size) < 0:
        _refuse(folder, f"a manifest that gives {source} {split} as {str(entry)[:200]}")
    if not path.exists():
        _refuse(folder, f"no {path.name}")
    if sha256_file(path) != sha256:
        _refuse(folder, f"other bytes in {path.name} than its manifest says")
    return Split(path, documents, size)


def _refuse(folder: Path, got: str) -> NoReturn:
    raise DataError(
        f"{folder} must be the megachat of this experiment", got=got, fix="delete that folder and run the stage again"
    )


# ---------------------------------------------------------------------------------------------------------------------


def shares(available: Mapping[str, int], weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Bytes to take of each source: `total` by weight, none above what is available, the rest given to the others."""
    taken = dict.fromkeys(available, 0)
    open_sources = [source for source in available if weights[source] > 0]
    while open_sources:
        left = total - sum(taken.values())
        weight = sum(weights[source] for source in open_sources)
        wanted = {source: int(left * (weights[source] / weight)) for source in open_sources}
        short = [source for source in open_sources if available[source] <= wanted[source]]
        taken |= {source: available[source] for source in short} if short else wanted
        open_sources = [source for source in open_sources if source not in short] if short else []
    return taken


def spread(texts: Iterable[str], total: int, wanted: int) -> list[str]:
    """Documents evenly spread over `texts` (of `total` bytes), `wanted` bytes at most; the last may be cut."""
    taken: list[str] = []
    passed = size = 0
    for text in texts:
        if size >= wanted:
            break
        data = text.encode()
        if size * total <= passed * wanted:  # what was taken lags behind its share of what went by
            data = data[: wanted - size]
            taken.append(data.decode(errors="ignore"))
            size += len(data)
        passed += len(data)
    return taken


def head(corpus: Corpus, wanted: int) -> list[str]:
    """The first `wanted` bytes of the training text, as the sources come."""
    taken: list[str] = []
    for splits in corpus.values():
        room = wanted - n_bytes(taken)
        taken += spread(splits["train"].read(), room, room)
    return taken


def n_bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)
