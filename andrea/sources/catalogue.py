"""The catalogue of data sets and sources: `sources.yaml`, checked, as frozen dataclasses.

A source whose experiment names a folder of the user's own text is not in the file: it is a data set of its own name,
kind "files", revision "local".
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as resource
from typing import Any, NamedTuple

import yaml

from andrea.errors import DataError, ExperimentError
from andrea.experiment import SourceSpec

ALL = "all"
LOCAL = "local"
_KEYS = {
    "hub": {"repo", "files", "form", "path"},
    "package": {"package", "module", "file", "sha256"},
    "synthetic": set(),
}
FORMS = ("jsonl", "messages", "oasst", "books", "dictionary")  # what the files of a hub data set hold: forms.py
_FILE = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*")
_COMMON = {"kind", "revision", "buckets", "licence", "provenance"}


class CatalogueEntry(NamedTuple):
    """What a source is made of."""

    dataset: str
    bucket: str
    revision: str
    kind: str
    licence: str
    provenance: str


@dataclass(frozen=True)
class Dataset:
    """What is pulled in one go. The fields from `repo` on are empty where the kind has no use for them."""

    name: str
    kind: str
    revision: str
    buckets: tuple[str, ...]
    licence: str
    provenance: str
    repo: str = ""
    path: str = ""
    files: tuple[str, ...] = ()
    form: str = ""
    package: str = ""
    module: str = ""
    file: str = ""
    sha256: str = ""

    def entry(self, bucket: str) -> CatalogueEntry:
        return CatalogueEntry(self.name, bucket, self.revision, self.kind, self.licence, self.provenance)


@cache
def load_datasets() -> dict[str, Dataset]:
    """Data set name -> data set. Raises DataError when sources.yaml was edited into something else."""
    with _shaped():
        return {name: _dataset(name, value) for name, value in _yaml()["datasets"].items()}


@cache
def load_catalogue() -> dict[str, CatalogueEntry]:
    """Source name -> its entry, for the sources that ANDREA ships."""
    datasets = load_datasets()
    entries = {}
    with _shaped():
        for source, value in _yaml()["sources"].items():
            dataset, bucket = datasets.get(value["dataset"]), value["bucket"]
            if dataset is None or bucket not in dataset.buckets:
                raise _bad(f"source {source} must name a data set and one of its buckets", value)
            entries[source] = dataset.entry(bucket)
    return entries


def entry(source: str, spec: SourceSpec) -> CatalogueEntry:
    """The entry of an experiment's source; raises ExperimentError for a name that nobody knows."""
    if spec.files is not None:
        return own_files(source, spec.files).entry(ALL)
    known = load_catalogue()
    if source not in known:
        raise ExperimentError(
            f'the source "{source}" must be in the catalogue, or name a folder of your own text in "files"',
            got=f'"{source}"',
            fix=_nearest(source, known),
        )
    return known[source]


def find_dataset(name: str) -> Dataset:
    """A data set of the catalogue; raises DataError for a name that nobody knows."""
    known = load_datasets()
    if name not in known:
        raise DataError(
            "a data set must be in the catalogue, or be pulled from a folder of your own with --files",
            got=f'"{name}"',
            fix=_nearest(name, known),
        )
    return known[name]


def own_files(name: str, folder: str) -> Dataset:
    """The data set that a folder of the user's own text is."""
    return Dataset(name, "files", LOCAL, (ALL,), "not stated: files of your own", f"files of your own in {folder}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f'did you mean "{near[0]}"?' if near else f"choose one of: {', '.join(sorted(known))}"


@cache
def _yaml() -> dict[str, Any]:
    text = (resource(__package__) / "sources.yaml").read_text(encoding="utf-8")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise _bad("it must be YAML", cause) from cause
    if not isinstance(value, dict) or set(value) != {"datasets", "sources"}:
        raise _bad("its keys must be datasets and sources", value)
    return value


def _dataset(name: str, value: dict[str, Any]) -> Dataset:
    kind = value.get("kind", "")
    needed = _COMMON | _KEYS.get(kind, set())
    if kind not in _KEYS or set(value) != needed:
        raise _bad(f"the data set {name} must have a kind of {sorted(_KEYS)} and the keys of that kind", value)
    if kind == "hub" and not re.fullmatch("[0-9a-f]{40}", value["revision"]):
        raise _bad(f"the data set {name} must be pinned to a full commit: 40 hex digits", value["revision"])
    if kind == "hub":
        _check_files(name, value)
    tuples: dict[str, tuple[str, ...]] = {key: tuple(value[key]) for key in ("buckets", "files") if key in value}
    return Dataset(name=name, **{**value, **tuples})


def _check_files(name: str, value: dict[str, Any]) -> None:
    """File names become paths below the download folder: none may lead out of it, and none stand for two."""
    if value["form"] not in FORMS:
        raise _bad(f"the form of the data set {name} must be one of {', '.join(FORMS)}", value["form"])
    files = value["files"]
    if not isinstance(files, list) or not files or len(set(files)) != len(files):
        raise _bad(f"the files of the data set {name} must be a list of different names", files)
    odd = [file for file in files if not _FILE.fullmatch(file)]
    if odd:
        raise _bad(f"the files of the data set {name} must be plain paths in its repository", odd)


@contextmanager
def _shaped() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError) as cause:
        raise _bad("data sets and sources must have the shipped file's shape", repr(cause)) from cause


def _bad(must: str, got: object) -> DataError:
    return DataError(f"andrea/sources/sources.yaml: {must}", got=got, fix="compare it with the shipped file")
