"""Data sets of the hub: a pinned revision, resolved once into the lock file, and a download that is checked.

The transfer is our own, over the hub library's session (so its proxies, certificates and tokens hold): the library's
own download starts from zero after a kill, and takes a file that lies in place for the right one. Here a partial file
is kept under a temporary name that carries the sha256, goes on where it stopped, and gets its final name only when
commit, size and sha256 are those of the lock. A file that the user has put in place is checked the same way.

Nothing waits long: one probe with a short timeout comes first, and the few retries are for transfers that break.
"""

import time
from pathlib import Path
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi, constants, get_session, get_token, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError

from andrea.errors import DataError
from andrea.files import require_free, storing, sync_folder
from andrea.progress import Progress
from andrea.sources.catalogue import Dataset
from andrea.sources.huberrors import reaching, unreachable
from andrea.sources.lockfile import Locked, read_locked, write_locked

PROBE_SECONDS = 10.0
READ_SECONDS = 30.0
WAITS = (0.5, 1.0, 2.0)  # seconds before each further try that follows a try without a new byte
SHARDS_SHARE = 0.6  # packed shards, at most, as a share of the data set's size
_COMMIT = "X-Repo-Commit"


def download_path(folder: Path, dataset: Dataset) -> Path:
    """Where the data set's file lies, and where a user may put it by hand."""
    return folder / "download" / dataset.file


def fetch(dataset: Dataset, folder: Path, lock: Path, *, offline: bool) -> tuple[Path, Locked]:
    """The data set's file, checked against the lock file; downloaded if it is not there yet.

    Raises Unreachable (a DataError) with the way by hand, DataError for a file that is not the locked one, and
    StorageError when the disk is too small.
    """
    path = download_path(folder, dataset)
    locked = lock_or_resolve(dataset, lock, path, offline=offline)
    if path.exists():
        locked.check(path)
        return path, locked
    by_hand = _by_hand(path, lock, locked)
    if offline:
        raise unreachable(dataset, "--offline, and the file is not on this disk", "pull without --offline", by_hand)
    with reaching(dataset, by_hand), storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(dataset, locked, path)
    return path, locked


def lock_or_resolve(dataset: Dataset, lock: Path, path: Path, *, offline: bool) -> Locked:
    """The lock file's entry for `dataset`; when it has none for this revision, the hub is asked and it gets one."""
    locked = read_locked(lock, dataset)
    if locked is None:
        by_hand = _by_hand(path, lock, None)
        if offline:
            got = f"--offline, and {lock} has no entry for this revision"
            raise unreachable(dataset, got, "pull once without --offline", by_hand)
        with reaching(dataset, by_hand):
            locked = resolve(dataset)
        write_locked(lock, dataset, locked)
    return locked


def resolve(dataset: Dataset) -> Locked:
    """Ask the hub for the commit, size and sha256 of the data set's file. One request, no retries."""
    try:
        info = HfApi().dataset_info(dataset.repo, revision=dataset.revision, files_metadata=True, timeout=PROBE_SECONDS)
        found = {item.rfilename: item for item in info.siblings or []}
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise _strange(dataset, f"an answer that is not the hub's: {cause!r}") from cause
    if info.sha != dataset.revision:
        raise _strange(dataset, f"commit {info.sha}")
    item = found.get(dataset.file)
    if item is None or item.lfs is None:
        raise _strange(dataset, f"no sha256 for {dataset.file}, but the files {sorted(found)[:20]}")
    return Locked(dataset.repo, dataset.revision, dataset.file, item.lfs.size, item.lfs.sha256)


def probe(dataset: Dataset) -> None:
    """Raise what the hub's library raises unless the hub answers for this revision within PROBE_SECONDS."""
    HfApi().dataset_info(dataset.repo, revision=dataset.revision, timeout=PROBE_SECONDS)


# ---------------------------------------------------------------------------------------------------------------------


def _download(dataset: Dataset, locked: Locked, path: Path) -> None:
    """Fetch the file to `path`, going on from a partial one."""
    part = path.with_name(f".{path.name}.{locked.sha256[:16]}.part")
    have = _size(part)
    if have > locked.size:
        part.unlink()
        have = 0
    require_free(path, locked.size - have + int(SHARDS_SHARE * locked.size), f"the data set {dataset.name}")
    if have < locked.size:
        probe(dataset)
        _transfer(dataset, locked, part)
    try:
        locked.check(part)
    except DataError:
        part.unlink()
        raise
    part.replace(path)
    sync_folder(path.parent)


def _transfer(dataset: Dataset, locked: Locked, part: Path) -> None:
    """Append to `part` until it has the locked size; broken transfers go on where they stopped."""
    progress = Progress(f"pull {dataset.name}: download", locked.size // 10**6, "MB", start=_size(part) // 10**6)
    failures = 0
    while (before := _size(part)) < locked.size:
        try:
            _stream(dataset, locked, part, before, progress)
        except (httpx2.TransportError, HfHubHTTPError) as cause:
            failures = 0 if _size(part) > before else failures + 1
            if failures > len(WAITS) or not _may_pass(cause):
                raise
            time.sleep(WAITS[max(failures, 1) - 1])
        except OSError:
            part.unlink(missing_ok=True)  # the disk is full: what came is worth less than the room it takes
            raise
    progress.close(f"pull {dataset.name}: {locked.size / 1e6:,.1f} MB downloaded")


def _stream(dataset: Dataset, locked: Locked, part: Path, have: int, progress: Progress) -> None:
    """One request for the bytes from `have` on; every byte that comes is kept."""
    url = f"{constants.ENDPOINT}{dataset.path}/resolve/{locked.revision}/{quote(locked.file)}"
    headers = {"Accept-Encoding": "identity", **_authorization()} | ({"Range": f"bytes={have}-"} if have else {})
    timeout = httpx2.Timeout(READ_SECONDS, connect=PROBE_SECONDS)
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        have = have if response.status_code == 206 else 0
        _check_answer(dataset, locked, response, have)
        with open(part, "r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in response.iter_bytes():  # as it comes: a chunk size would lose what it gathers
                file.write(chunk)
                have += len(chunk)
                progress.update(have // 10**6)


def _check_answer(dataset: Dataset, locked: Locked, response: httpx2.Response, have: int) -> None:
    """Refuse another commit or another size before the first byte is kept. A redirect's first answer is the hub's."""
    first = response.history[0] if response.history else response
    commit = first.headers.get(_COMMIT)
    if commit != locked.revision:
        raise _strange(dataset, f"{_COMMIT}: {commit}")
    length = response.headers.get("Content-Length")
    if length is not None and length != str(locked.size - have):
        raise _strange(
            dataset, f"{length} bytes from byte {have:,} on, where the lock file says {locked.size:,} in all"
        )
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
    must = f"the hub must have {dataset.file} of {dataset.repo} at {dataset.revision} as it was locked"
    return DataError(
        must, got=got, fix="check HF_ENDPOINT and sources.yaml; if the pin was changed, delete its lock entry"
    )


def _by_hand(path: Path, lock: Path, locked: Locked | None) -> str:
    if locked is None:
        return f"put the file at {path}, copy {lock} from a machine that has pulled it, then pull with --offline"
    return f"put the file ({locked.size:,} bytes, sha256 {locked.sha256}) at {path}, then pull with --offline"
