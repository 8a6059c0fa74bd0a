"""Raw shards: the documents of a data set as packed JSONL files of 20,000, and the manifest that makes them valid.

    <folder>/<bucket>-00000.jsonl.zst ...     lines of {"turns": [{"role", "text"}]} or {"text"}
    <folder>/manifest.json                    written last: without it the folder holds nothing

Resume: while a pull runs, `journal.json` lists the finished shards. A pull that is started again with the same input
and the same code goes through the input once more, but packs and writes only what the journal does not vouch for by
sha256. The manifest replaces the journal.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.errors import DataError
from andrea.files import read_json, sha256_bytes, sha256_file, storing, write_atomic, write_json
from andrea.megachat import Document, characters
from andrea.packed import compressor, unpack
from andrea.sources.records import Rejected, from_line, to_line

DOCUMENTS_PER_SHARD = 20_000
MANIFEST = "manifest.json"
JOURNAL = "journal.json"
_SHARD = re.compile(r"[a-z0-9-]+-\d{5,}\.jsonl\.zst")
_LEFT_OVER = re.compile(r"\..+\.tmp")  # of an atomic write that was killed
_FIX = "delete its folder and pull the data set anew"
_SHA256 = re.compile("[0-9a-f]{64}")


class Shards:
    """Writes the documents of one data set, in order, into shards per bucket.

    `key` stands for the input and the code: a journal with another key is not believed.
    """

    def __init__(self, folder: Path, buckets: tuple[str, ...], key: str) -> None:
        self.folder, self.key = folder, key
        self.kept = _finished(folder, key)
        self.done: dict[str, dict[str, Any]] = {}
        self.buckets = {bucket: _Bucket(self, bucket) for bucket in buckets}

    def add(self, bucket: str, document: Document) -> None:
        self.buckets[bucket].add(document)

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the last shards and then the manifest, `facts` and the counts per bucket; returns it."""
        manifest = {**facts, "buckets": {name: bucket.finish() for name, bucket in self.buckets.items()}}
        write_json(self.folder / MANIFEST, manifest)
        with storing(self.folder):
            (self.folder / JOURNAL).unlink(missing_ok=True)
            for path in self.folder.iterdir():
                stale = _SHARD.fullmatch(path.name) and path.name not in self.done
                if stale or _LEFT_OVER.fullmatch(path.name):
                    path.unlink()
        return manifest

    def record(self, shard: dict[str, Any]) -> None:
        """Note a finished shard, so that a killed pull need not write it again."""
        self.done[shard["file"]] = shard
        if shard["file"] not in self.kept:
            write_json(self.folder / JOURNAL, {"key": self.key, "shards": {**self.kept, **self.done}})


class _Bucket:
    """The open shard of one bucket."""

    def __init__(self, shards: Shards, name: str) -> None:
        self.shards, self.name = shards, name
        self.documents = self.characters = 0
        self.files: list[dict[str, Any]] = []
        self._open()

    def _open(self) -> None:
        self.file = f"{self.name}-{len(self.files):05d}.jsonl.zst"
        self.kept = self.shards.kept.get(self.file)
        self.count = 0
        self.lines: list[bytes] = []

    def add(self, document: Document) -> None:
        self.count += 1
        self.documents += 1
        self.characters += characters(document)
        if self.kept is None:
            self.lines.append(to_line(document))
        if self.count == DOCUMENTS_PER_SHARD:
            self._close()

    def _close(self) -> None:
        shard = self.kept if self.kept is not None else self._write()
        if shard["documents"] != self.count:
            path = self.shards.folder / self.file
            raise DataError(f"{path} must hold {self.count} documents", got=shard["documents"], fix=_FIX)
        self.files.append(shard)
        self.shards.record(shard)
        self._open()

    def _write(self) -> dict[str, Any]:
        pack = compressor()
        data = pack.compress(b"".join(self.lines)) + pack.flush()
        write_atomic(self.shards.folder / self.file, data)
        return {"file": self.file, "sha256": sha256_bytes(data), "bytes": len(data), "documents": self.count}

    def finish(self) -> dict[str, Any]:
        if self.count:
            self._close()
        return {"documents": self.documents, "characters": self.characters, "shards": self.files}


def _finished(folder: Path, key: str) -> dict[str, dict[str, Any]]:
    """The shards of an earlier, killed pull that are still what its journal says."""
    path = folder / JOURNAL
    if not path.exists():
        return {}
    try:
        journal = read_json(path, "the journal")
    except DataError:
        return {}  # it only saves work: a damaged one saves none
    if journal.get("key") != key or not isinstance(journal.get("shards"), dict):
        return {}
    return {name: shard for name, shard in journal["shards"].items() if _is_whole(folder / name, shard)}


def _is_whole(path: Path, shard: Any) -> bool:
    if not isinstance(shard, dict) or not path.is_file():
        return False
    known = isinstance(shard.get("documents"), int) and shard.get("file") == path.name
    return known and sha256_file(path) == shard.get("sha256")


# ---------------------------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a pulled data set with its shape checked; raises DataError."""
    path = folder / MANIFEST
    manifest = read_json(path, "the manifest of a pulled data set")
    try:
        texts = [manifest[key] for key in ("dataset", "revision", "kind", "licence", "provenance")]
        texts += [manifest["files"]] if "files" in manifest else []
        counts = [bucket[key] for bucket in manifest["buckets"].values() for key in ("documents", "characters")]
        shards = [shard for bucket in manifest["buckets"].values() for shard in bucket["shards"]]
        sound = all(isinstance(text, str) for text in texts) and all(_is_count(count) for count in counts)
        sound = sound and all(_is_shard(shard) for shard in shards)
    except (KeyError, TypeError, AttributeError) as cause:
        raise DataError(f"{path} must be the manifest of a pulled data set", got=repr(cause), fix=_FIX) from cause
    if not sound:
        raise DataError(f"{path} must be the manifest of a pulled data set", got="values of wrong types", fix=_FIX)
    return manifest


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shard(shard: dict[str, Any]) -> bool:
    named = _SHARD.fullmatch(shard["file"]) and _SHA256.fullmatch(shard["sha256"])
    return bool(named) and _is_count(shard["bytes"]) and _is_count(shard["documents"])


def read_bucket(folder: Path, manifest: dict[str, Any], bucket: str) -> Iterator[Document]:
    """The documents of one bucket, in order; each shard's sha256 is checked before it is read."""
    for shard in manifest["buckets"][bucket]["shards"]:
        path = folder / shard["file"]
        got = sha256_file(path) if path.is_file() else "no such file"
        if got != shard["sha256"]:
            raise DataError(f"{path} must have the sha256 {shard['sha256']}", got=got, fix=_FIX)
        count = 0
        for document in _documents(path):
            count += 1
            yield document
        if count != shard["documents"]:
            raise DataError(f"{path} must hold {shard['documents']} documents", got=count, fix=_FIX)


def _documents(path: Path) -> Iterator[Document]:
    for number, line in enumerate(_lines(path), 1):
        try:
            yield from_line(line)
        except Rejected as cause:
            raise DataError(f"{path}, line {number} must be a document", got=cause, fix=_FIX) from cause


def _lines(path: Path) -> Iterator[bytes]:
    pending = b""
    for piece in unpack(path, "a whole shard", _FIX):
        *lines, pending = (pending + piece).split(b"\n")
        yield from lines
    if pending:
        yield pending
