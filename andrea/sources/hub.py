"""Data sets of the hub: a pinned revision, resolved once into the lock file, and a download that is checked.

The transfer is our own, over the hub library's session (so its proxies, certificates and tokens hold): the library's
own download starts from zero after a kill, and takes a file that lies in place for the right one. Here a partial file
is kept under a temporary name that carries the sha256, goes on where it stopped, and gets its final name only when
commit, size and sha256 are those of the lock. A file that the user has put in place is checked the same way. A data set of
several files is fetched file by file: those that are whole stay.

Nothing waits long: one probe with a short timeout comes first, and the few retries are for transfers that break.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi, constants, get_session, get_token, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError

from andrea.errors import DataError
from andrea.files import require_free, sha256_bytes, storing, sync_folder
from andrea.progress import Progress
from andrea.sources.catalogue import Dataset
from andrea.sources.huberrors import reaching, unreachable
from andrea.sources.lockfile import Locked, LockedFile, read_locked, write_locked

PROBE_SECONDS = 10.0
READ_SECONDS = 30.0
WAITS = (0.5, 1.0, 2.0)  # seconds before each further try that follows a try without a new byte
# packed shards, at most, as a share of the files: Parquet is packed already, and less tightly
SHARDS_SHARE = {"jsonl": 0.6, "messages": 1.2, "oasst": 1.2, "books": 1.2, "dictionary": 0.6}
PLAIN_BYTES = 16 << 20  # of a file that the hub keeps in git itself, at most; its own limit is lower
_COMMIT = "X-Repo-Commit"


def download_folder(folder: Path) -> Path:
    """Where the data set's files lie, as in their repository, and where a user may put them by hand."""
    return folder / "download"


def fetch(dataset: Dataset, folder: Path, lock: Path, *, offline: bool) -> tuple[list[Path], Locked]:
    """The data set's files in the catalogue's order, checked against the lock file; what is missing is downloaded.

    Raises Unreachable (a DataError) with the way by hand, DataError for a file that is not the locked one, and
    StorageError when the disk is too small, which is found before the first byte.
    """
    downloads = download_folder(folder)
    locked = lock_or_resolve(dataset, lock, downloads, offline=offline)
    paths = [downloads / wanted.file for wanted in locked.files]
    missing = []
    for path, wanted in zip(paths, locked.files, strict=True):
        if path.exists():
            wanted.check(path, locked.repo)
        else:
            missing.append((path, wanted))
    if missing:
        _fetch_missing(dataset, locked, missing, downloads, offline=offline)
    return paths, locked


def _fetch_missing(
    dataset: Dataset, locked: Locked, missing: list[tuple[Path, LockedFile]], downloads: Path, *, offline: bool
) -> None:
    by_hand = _by_hand(missing)
    if offline:
        what = "the file is" if len(missing) == 1 else f"{len(missing)} files are"
        raise unreachable(dataset, f"--offline, and {what} not on this disk", "pull without --offline", by_hand)
    with storing(downloads):
        downloads.mkdir(parents=True, exist_ok=True)
        parts = {path: _part(path, wanted) for path, wanted in missing}
        todo = sum(max(wanted.size - _size(parts[path]), 0) for path, wanted in missing)
        share = SHARDS_SHARE[dataset.form]
        require_free(downloads, todo + int(share * locked.size), f"the data set {dataset.name}")
    for path, wanted in missing:
        with reaching(dataset, by_hand), storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(dataset, locked, wanted, path)


def lock_or_resolve(dataset: Dataset, lock: Path, downloads: Path, *, offline: bool) -> Locked:
    """The lock file's entry for `dataset`; when it has none for this revision, the hub is asked and it gets one."""
    locked = read_locked(lock, dataset)
    if locked is None:
        by_hand = _by_hand_unlocked(dataset, downloads, lock)
        if offline:
            got = f"--offline, and {lock} has no entry for this revision"
            raise unreachable(dataset, got, "pull once without --offline", by_hand)
        with reaching(dataset, by_hand):
            locked = resolve(dataset)
        write_locked(lock, dataset, locked)
    return locked


def resolve(dataset: Dataset) -> Locked:
    """Ask the hub for the commit, size and sha256 of the data set's files. One request, no retries.

    Of a small file that it keeps in git itself the hub knows no sha256: such a file is fetched, and checked by git's id.
    """
    try:
        info = HfApi().dataset_info(dataset.repo, revision=dataset.revision, files_metadata=True, timeout=PROBE_SECONDS)
        found = {item.rfilename: item for item in info.siblings or []}
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise _strange(dataset, f"an answer that is not the hub's: {cause!r}") from cause
    if info.sha != dataset.revision:
        raise _strange(dataset, f"commit {info.sha}")
    files = []
    for file in dataset.files:
        item = found.get(file)
        if item is None:
            raise _strange(dataset, f"no {file}, but the files {sorted(found)[:20]}")
        if item.lfs is None:
            files.append(_resolve_plain(dataset, LockedFile(file, item.size or 0, ""), item.blob_id))
        else:
            files.append(LockedFile(file, item.lfs.size, item.lfs.sha256))
    return Locked(dataset.repo, dataset.revision, tuple(files))


def _resolve_plain(dataset: Dataset, wanted: LockedFile, blob: str | None) -> LockedFile:
    """`wanted` with its sha256; `blob` is git's id of it, the SHA-1 of a header and the content."""
    if not 0 < wanted.size <= PLAIN_BYTES:
        raise _strange(dataset, f"neither a sha256 nor a small size for {wanted.file}: {wanted.size:,} bytes")
    data = bytearray()
    with _open(dataset, wanted, 0) as response:
        _check_answer(dataset, wanted, response, 0)
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > wanted.size:
                break
    if hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() != blob:
        raise _strange(dataset, f"{len(data):,} bytes of {wanted.file} that are not git's {blob}")
    return replace(wanted, sha256=sha256_bytes(bytes(data)))


def probe(dataset: Dataset) -> None:
    """Raise what the hub's library raises unless the hub answers for this revision within PROBE_SECONDS."""
    HfApi().dataset_info(dataset.repo, revision=dataset.revision, timeout=PROBE_SECONDS)


# ---------------------------------------------------------------------------------------------------------------------


def _part(path: Path, wanted: LockedFile) -> Path:
    """The name of the partial file, which carries the sha256 that it is to have."""
    return path.with_name(f".{path.name}.{wanted.sha256[:16]}.part")


def _download(dataset: Dataset, locked: Locked, wanted: LockedFile, path: Path) -> None:
    """Fetch one file to `path`, going on from a partial one."""
    part = _part(path, wanted)
    if _size(part) > wanted.size:
        part.unlink()
    if _size(part) < wanted.size:
        probe(dataset)
        _transfer(dataset, wanted, part)
    try:
        wanted.check(part, locked.repo)
    except DataError:
        part.unlink()
        raise
    part.replace(path)
    sync_folder(path.parent)


def _transfer(dataset: Dataset, wanted: LockedFile, part: Path) -> None:
    """Append to `part` until it has the locked size; broken transfers go on where they stopped."""
    label = f"pull {dataset.name}: {wanted.file}"
    progress = Progress(label, wanted.size // 10**6, "MB", start=_size(part) // 10**6)
    failures = 0
    while (before := _size(part)) < wanted.size:
        try:
            _stream(dataset, wanted, part, progress)
        except (httpx2.TransportError, HfHubHTTPError) as cause:
            failures = 0 if _size(part) > before else failures + 1
            if failures > len(WAITS) or not _may_pass(cause):
                raise
            time.sleep(WAITS[max(failures, 1) - 1])
        except OSError:
            part.unlink(missing_ok=True)  # the disk is full: what came is worth less than the room it takes
            raise
    progress.close(f"{label}, {wanted.size / 1e6:,.1f} MB downloaded")


def _stream(dataset: Dataset, wanted: LockedFile, part: Path, progress: Progress) -> None:
    """One request for the bytes that `part` lacks; every byte that comes is kept."""
    have = _size(part)
    with _open(dataset, wanted, have) as response:
        have = have if response.status_code == 206 else 0
        _check_answer(dataset, wanted, response, have)
        with open(part, "r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in response.iter_bytes():  # as it comes: a chunk size would lose what it gathers
                file.write(chunk)
                have += len(chunk)
                progress.update(have // 10**6)


@contextmanager
def _open(dataset: Dataset, wanted: LockedFile, have: int) -> Iterator[httpx2.Response]:
    """The hub's answer to a request for a file at the pinned commit, from byte `have` on."""
    url = f"{constants.ENDPOINT}{dataset.path}/resolve/{dataset.revision}/{quote(wanted.file)}"
    headers = {"Accept-Encoding": "identity", **_authorization()} | ({"Range": f"bytes={have}-"} if have else {})
    timeout = httpx2.Timeout(READ_SECONDS, connect=PROBE_SECONDS)
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        yield response


def _check_answer(dataset: Dataset, wanted: LockedFile, response: httpx2.Response, have: int) -> None:
    """Refuse another commit or another size before the first byte is kept.

    The commit stands in the hub's own answer, which may come after a redirect to a new name and before one to a CDN.
    """
    commit = next((a.headers[_COMMIT] for a in (*response.history, response) if _COMMIT in a.headers), None)
    if commit != dataset.revision:
        raise _strange(dataset, f"{_COMMIT}: {commit}")
    length = response.headers.get("Content-Length")
    if length is not None and length != str(wanted.size - have):
        got = f"{length} bytes of {wanted.file} from byte {have:,} on, where the lock file says {wanted.size:,} in all"
        raise _strange(dataset, got)
    where = response.headers.get("Content-Range", "")
    if have and not where.startswith(f"bytes {have}-"):
        raise _strange(dataset, f"the range {where!r} where bytes {have}- were asked for")


def _authorization() -> dict[str, str]:
    """The user's token, as the hub's library would send it; the session drops it on the way to another host."""
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _may_pass(error: Exception) -> bool:
    """Whether another try may help: broken connections and the hub's own failures, but no refusals."""
    return not isinstance(error, HfHubHTTPError) or error.response.status_code >= 500


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _strange(dataset: Dataset, got: str) -> DataError:
    what = dataset.files[0] if len(dataset.files) == 1 else "the files"
    must = f"the hub must have {what} of {dataset.repo} at {dataset.revision} as it was locked"
    return DataError(
        must, got=got, fix="check HF_ENDPOINT and sources.yaml; if the pin was changed, delete its lock entry"
    )


def _by_hand(missing: list[tuple[Path, LockedFile]]) -> str:
    each = [f"({wanted.size:,} bytes, sha256 {wanted.sha256}) at {path}" for path, wanted in missing]
    if len(each) == 1:
        return f"put the file {each[0]}, then pull with --offline"
    return "put the files\n         " + "\n         ".join(each) + "\n       then pull with --offline"


def _by_hand_unlocked(dataset: Dataset, downloads: Path, lock: Path) -> str:
    what, where = ("file", downloads / dataset.files[0]) if len(dataset.files) == 1 else ("files", downloads)
    return f"put the {what} at {where}, copy {lock} from a machine that has pulled it, then pull with --offline"
