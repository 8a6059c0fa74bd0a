"""One data set into a folder of raw shards: `andrea pull`, `scripts/pull-hermes3.py`.

A killed pull goes on: a download where it stopped, the shards after the last finished one. The same data set gives the
same bytes. One pull at a time may work on a folder.
"""

import fcntl
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files as resource
from itertools import islice
from pathlib import Path
from typing import Any

from andrea import megachat
from andrea.errors import DataError, RunError, StorageError
from andrea.files import storing
from andrea.progress import Progress
from andrea.sources.catalogue import Dataset, find_dataset, own_files
from andrea.sources.feed import Feed, Item
from andrea.sources.shards import MANIFEST, Shards


def pull(dataset_name: str, out_dir: Path, *, lock: Path, offline: bool, files: Path | None) -> None:
    """Write the shards of a data set and then `out_dir/manifest.json`.

    `files` is a folder of the user's own text, for a data set that is in no catalogue. `lock` is the lock file of the
    hub's data sets; with `offline` nothing but this disk is used. Raises DataError (Unreachable for the hub),
    StorageError, or RunError when another pull works on the folder.
    """
    dataset = find_dataset(dataset_name) if files is None else own_files(dataset_name, str(files))
    with _alone(out_dir):
        feed = _open(dataset, out_dir, lock, offline, files)
        with storing(out_dir):
            (out_dir / MANIFEST).unlink(missing_ok=True)
        manifest = _write(dataset, feed, out_dir)
    counts = ", ".join(f"{name} {bucket['documents']:,}" for name, bucket in manifest["buckets"].items())
    print(f"pull {dataset.name}: {counts} documents in {out_dir}; licence: {dataset.licence}", file=sys.stderr)


def preview(dataset_name: str, count: int, *, lock: Path) -> Iterator[str]:
    """The first `count` rows of a hub data set at its locked commit, as text for people: bucket and megachat."""
    from andrea.sources import forms, hub
    from andrea.sources.huberrors import reaching, unreachable
    from andrea.sources.rows import hub_urls

    dataset = find_dataset(dataset_name)
    if dataset.form != "jsonl":  # Parquet would have to be read to its end: rows.py
        got = dataset.form or f"kind {dataset.kind}"
        raise DataError(
            "a preview is of a data set of the hub in JSONL", got=got, fix="pull it, and look at its shards"
        )
    place = hub.download_folder(Path("data", "raw", dataset.name, dataset.revision))  # where a pull looks for it
    locked = hub.lock_or_resolve(dataset, lock, place, offline=False)
    by_hand = "a preview needs the hub; look into the pulled file instead"
    try:
        with reaching(dataset, by_hand):
            hub.probe(dataset)
            rows = islice(forms.items(dataset, hub_urls(locked)), count)
            yield from (_show(number, item) for number, item in enumerate(rows, 1))
    except FileNotFoundError as cause:  # what `datasets` makes of a file that it may not or cannot reach
        raise unreachable(dataset, str(cause), "check `files` in sources.yaml and HF_TOKEN", by_hand) from cause


def _show(number: int, item: Item) -> str:
    if item.parsed is None:
        return f"--- row {number}: dropped, {item.reason}"
    return f"--- row {number}: {item.bucket}\n{megachat.encode(item.parsed.document)}"


def _open(dataset: Dataset, folder: Path, lock: Path, offline: bool, files: Path | None) -> Feed:
    """The feed of the data set's kind. Libraries are imported where they are needed: the hub's take a second."""
    if dataset.kind == "hub":
        from andrea.sources import forms, hub

        paths, locked = hub.fetch(dataset, folder, lock, offline=offline)
        return forms.feed(dataset, paths, locked)
    if dataset.kind == "package":
        from andrea.sources import chitchat

        return chitchat.feed(dataset)
    if dataset.kind == "synthetic":
        from andrea.sources import synthetic

        return synthetic.feed()
    from andrea.sources import folder as own

    assert files is not None, "the kind files comes with a folder"
    return own.feed(files)


def _write(dataset: Dataset, feed: Feed, folder: Path) -> dict[str, Any]:
    shards = Shards(folder, dataset.buckets, f"{dataset.name} {dataset.revision} {feed.key} {_code()}")
    if shards.kept:
        print(f"pull {dataset.name}: going on, {len(shards.kept)} finished shards stay", file=sys.stderr)
    scale, unit = (10**6, "MB") if feed.unit == "bytes" else (1, feed.unit)
    progress = Progress(f"pull {dataset.name}", feed.total // scale, unit)
    dropped: Counter[str] = Counter()
    done = replaced = 0
    for item in feed.items:
        done += item.size
        if item.parsed is None:
            dropped[item.reason] += 1
        else:
            replaced += item.parsed.replaced
            shards.add(item.bucket, item.parsed.document)
        progress.update(done // scale)
    progress.close()
    if not any(bucket.documents for bucket in shards.buckets.values()):
        raise DataError(
            f"the data set {dataset.name} must hold a document", got=f"none; dropped: {dict(dropped)}", fix="look at it"
        )
    if replaced:
        print(f"warning: {replaced:,} lone surrogates of {dataset.name} became U+FFFD", file=sys.stderr)
    return shards.finish(_facts(dataset, feed, dropped, replaced))


def _facts(dataset: Dataset, feed: Feed, dropped: Counter[str], replaced: int) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "revision": dataset.revision,
        "kind": dataset.kind,
        "licence": dataset.licence,
        "provenance": dataset.provenance,
        **feed.facts,
        "dropped": dict(sorted(dropped.items())),
        "replaced_surrogates": replaced,
    }


def _code() -> str:
    """Hash of the code that makes documents: shards of other code are not gone on with."""
    digest = hashlib.sha256()
    for package, pattern in ((__package__, (".py", ".yaml")), ("andrea", ("megachat.py", "packed.py"))):
        for item in sorted(resource(package).iterdir(), key=lambda item: item.name):
            if item.name.endswith(pattern):
                digest.update(item.read_bytes())
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two pulls into one folder would spoil each other's partial files."""
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{folder} must be a folder", got="a file", fix="move it away, or choose another --out")
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            raise RunError(
                f"one pull at a time may work on {folder}", got="another one is at work", fix="wait for it"
            ) from cause
        yield
    finally:
        os.close(handle)
