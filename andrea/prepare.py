"""The megachat stage: raw shards of every source of an experiment -> one text file per source and split, with counts.

Each document passes, in this order, the length limits of its source, the need for a reply (a conversation that has
none teaches a chat model nothing), the excluded words, and the search for duplicates; `max_documents` then takes the
first ones. Lengths are characters of content. Words are compared whole and in any case.

Duplicates are found across all sources of the experiment, in the order in which the file names them: the first copy
stays. Two documents are the same when their megachat texts are, but for case, blanks and Unicode composition. The same
fingerprint decides the split, so a text that two experiments or two sources hold is held out in both or in neither.
"""

import hashlib
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea import megachat
from andrea.errors import DataError
from andrea.experiment import Experiment, SourceSpec
from andrea.files import storing, write_json
from andrea.megachat import Conversation, Document, Writer
from andrea.progress import Progress
from andrea.sources import shards
from andrea.sources.catalogue import CatalogueEntry, entry

MANIFEST = "manifest.json"
SPLITS = ("train", "heldout")
_BLANKS = bytes(32 if chr(code).isspace() else code for code in range(256))
_OURS = re.compile(r"[a-z0-9-]+\.(train|heldout)\.txt\.zst")


def prepare(experiment: Experiment, raw_root: Path, out_dir: Path) -> None:
    """Write `<source>.<train|heldout>.txt.zst` for every source, then manifest.json.

    `raw_root` holds `<dataset>/<revision>/` as pulled. Raises ExperimentError for an unknown source; DataError for raw
    text that is missing, damaged or not the experiment's, for a source of which nothing stays and for an empty split;
    StorageError when the disk refuses.
    """
    raws = {source: _Raw(source, spec, raw_root) for source, spec in experiment.sources.items()}
    with storing(out_dir):
        (out_dir / MANIFEST).unlink(missing_ok=True)
    sieve = Sieve(experiment.megachat.heldout_fraction)
    sources: dict[str, Any] = {}
    for source, raw in raws.items():
        sources[source] = _write(source, raw, sieve, out_dir)
        print(f"megachat {source}: {_summary(sources[source])}", file=sys.stderr)
    write_json(out_dir / MANIFEST, {"sources": sources, "totals": _totals(sources)})
    _remove_stale(sources, out_dir)


class Sieve:
    """What decides about a document; it remembers the fingerprints of all that it let through."""

    def __init__(self, heldout_fraction: float) -> None:
        self.limit = int(heldout_fraction * 2**64)
        self.fraction = heldout_fraction
        self.seen: set[bytes] = set()

    def sift(self, document: Document, spec: SourceSpec, words: re.Pattern[str] | None) -> tuple[str, str]:
        """(split, megachat text) of a document that stays, ("", reason) of one that does not."""
        length = megachat.characters(document)
        if length < spec.min_characters:
            return "", "shorter than min_characters"
        if length > spec.max_characters:
            return "", "longer than max_characters"
        if isinstance(document, Conversation) and all(role == "user" for role, _ in document.turns):
            return "", "no reply"
        text = megachat.encode(document)
        plain = normal(text)
        if words is not None and words.search(plain):
            return "", "an excluded word"
        mark = hashlib.blake2b(plain.encode(), digest_size=16).digest()
        if mark in self.seen:
            return "", "duplicate"
        self.seen.add(mark)
        return SPLITS[int.from_bytes(mark[:8], "big") < self.limit], text


def normal(text: str) -> str:
    """The text as it is compared: composed (NFC), case folded, every run of blanks one space, none at the ends."""
    if not text.isascii():
        return " ".join(unicodedata.normalize("NFC", text).casefold().split())
    plain = text.encode().lower().translate(_BLANKS)  # the same for ASCII, three times as fast
    while b"  " in plain:
        plain = plain.replace(b"  ", b" ")
    return plain.strip(b" ").decode()


def word_pattern(words: tuple[str, ...]) -> re.Pattern[str] | None:
    """Finds any of `words` as whole words in a normal text; None when there are none."""
    if not words:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(normal(word)) for word in words)})(?!\w)")


# ---------------------------------------------------------------------------------------------------------------------


class _Raw:
    """One source's raw text: its bucket of a pulled data set, checked against the experiment."""

    def __init__(self, source: str, spec: SourceSpec, raw_root: Path) -> None:
        self.spec, self.entry = spec, entry(source, spec)
        self.folder = raw_root / self.entry.dataset / self.entry.revision
        self.manifest = shards.read_manifest(self.folder)
        got = tuple(self.manifest[key] for key in ("dataset", "revision", "kind"))
        self._require(got == _identity(self.entry), f"be {_identity(self.entry)}", got)
        folder = self.manifest.get("files")
        self._require(_place(folder) == _place(spec.files), f"come from {spec.files}", folder)
        bucket = self.entry.bucket
        self._require(bucket in self.manifest["buckets"], f"have a bucket {bucket}", list(self.manifest["buckets"]))

    def _require(self, holds: bool, must: str, got: object) -> None:
        if not holds:
            fix = "pull the data set anew"
            raise DataError(f"the raw text in {self.folder} must {must}", got=got, fix=fix)

    @property
    def counts(self) -> dict[str, int]:
        bucket = self.manifest["buckets"][self.entry.bucket]
        return {"documents": bucket["documents"], "characters": bucket["characters"]}

    @property
    def documents(self) -> int:
        return self.counts["documents"]

    def read(self) -> Iterator[Document]:
        return shards.read_bucket(self.folder, self.manifest, self.entry.bucket)


def _place(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder).absolute()


def _identity(known: CatalogueEntry) -> tuple[str, str, str]:
    return known.dataset, known.revision, known.kind


def _write(source: str, raw: _Raw, sieve: Sieve, out_dir: Path) -> dict[str, Any]:
    """Both splits of one source; returns its part of the manifest."""
    dropped: Counter[str] = Counter()
    with Writer(out_dir / f"{source}.train.txt.zst") as train, Writer(out_dir / f"{source}.heldout.txt.zst") as heldout:
        writers = {"train": train, "heldout": heldout}
        _sift_all(source, raw, sieve, writers, dropped)
        _check_kept(source, raw, sieve, writers, dropped)
    known = raw.entry
    return {
        "dataset": known.dataset,
        "bucket": known.bucket,
        "revision": known.revision,
        "kind": known.kind,
        "licence": known.licence,
        "provenance": known.provenance,
        "in": raw.counts,
        "dropped": dict(sorted(dropped.items())),
        **{split: _describe(writer) for split, writer in writers.items()},
    }


def _sift_all(source: str, raw: _Raw, sieve: Sieve, writers: dict[str, Writer], dropped: Counter[str]) -> None:
    """Write what stays, count what does not."""
    words = word_pattern(raw.spec.exclude_words)
    room = raw.documents if raw.spec.max_documents is None else raw.spec.max_documents
    progress = Progress(f"megachat {source}", raw.documents, "documents")
    for done, document in enumerate(raw.read()):
        if not room:
            dropped["over max_documents"] = raw.documents - done
            break
        split, text = sieve.sift(document, raw.spec, words)
        if split:
            writers[split].add(text)
            room -= 1
        else:
            dropped[text] += 1
        progress.update(done + 1)
    progress.close()


def _check_kept(source: str, raw: _Raw, sieve: Sieve, writers: dict[str, Writer], dropped: Counter[str]) -> None:
    """An empty source or split would be found hours later, by training or validation."""
    kept = sum(writer.documents for writer in writers.values())
    if not kept:
        got = f"none of {raw.documents:,}; dropped: {dict(dropped)}"
        fix = f"loosen the limits of sources.{source}, or name it before the sources that hold the same text"
        raise DataError(f'the source "{source}" must keep a document', got=got, fix=fix)
    for split, writer in writers.items():
        if not writer.documents:
            must = f'the source "{source}" must have a document in the {split} split'
            got = f"{kept:,} documents, none of them there at heldout_fraction {sieve.fraction}"
            raise DataError(must, got=got, fix="change megachat.heldout_fraction, or give the source more documents")


def _describe(writer: Writer) -> dict[str, Any]:
    return {
        "file": writer.path.name,
        "sha256": writer.sha256,
        "documents": writer.documents,
        "bytes": writer.bytes,
        "file_bytes": writer.file_bytes,
    }


def _totals(sources: dict[str, Any]) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    for part in sources.values():
        dropped.update(part["dropped"])
    sums = {
        name: {key: sum(part[name][key] for part in sources.values()) for key in keys}
        for name, keys in (
            ("in", ("documents", "characters")),
            ("train", ("documents", "bytes")),
            ("heldout", ("documents", "bytes")),
        )
    }
    return {**sums, "dropped": dict(sorted(dropped.items()))}


def _summary(part: dict[str, Any]) -> str:
    kept = ", ".join(f"{split} {part[split]['documents']:,} ({part[split]['bytes'] / 1e6:,.2f} MB)" for split in SPLITS)
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in part["dropped"].items())
    return f"{part['in']['documents']:,} documents in; {kept}; dropped: {dropped or 'none'}; licence: {part['licence']}"


def _remove_stale(sources: dict[str, Any], out_dir: Path) -> None:
    """Files of sources that the experiment no longer names."""
    current = {part[split]["file"] for part in sources.values() for split in SPLITS}
    with storing(out_dir):
        for path in out_dir.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in current:
                path.unlink()
