"""What goes wrong between us and the hub, as one kind of error that says which data set, why, and the way by hand."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from andrea.errors import AndreaError, DataError
from andrea.sources.catalogue import Dataset


class Unreachable(DataError):
    """A data set could not be had from the hub."""


@contextmanager
def reaching(dataset: Dataset, by_hand: str) -> Iterator[None]:
    """Turn every failure to reach the hub into Unreachable; `by_hand` says how to do without."""
    try:
        yield
    except AndreaError:
        raise
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled, EntryNotFoundError, ConnectionError) as cause:
        raise unreachable(dataset, *explain(cause), by_hand) from cause


def unreachable(dataset: Dataset, got: str, fix: str, by_hand: str) -> Unreachable:
    must = f"the data set {dataset.name} must be reachable: {constants.ENDPOINT}{dataset.path} at {dataset.revision}"
    return Unreachable(must, got=got, fix=f"{fix}\n       or by hand: {by_hand}")


def explain(error: BaseException) -> tuple[str, str]:
    """(what happened, what to do) in a user's words."""
    if isinstance(error, GatedRepoError):
        token = "its token was refused" if "authorization" in error.response.request.headers else "no token was sent"
        return f"the data set is gated, and {token}", "accept its terms on its page, then set HF_TOKEN to your token"
    for kind, got, fix in _NAMED:
        if isinstance(error, kind):
            return got, fix
    if isinstance(error, HfHubHTTPError):
        return _status(error)
    return f"no connection: {error}", "check the network (and HTTP_PROXY, HTTPS_PROXY, HF_ENDPOINT), then type it again"


_NAMED: tuple[tuple[type[BaseException], str, str], ...] = (
    (RevisionNotFoundError, "the data set has no such revision", "pin one that exists in sources.yaml"),
    (
        RepositoryNotFoundError,
        "the hub knows no such data set",
        "check `repo` in sources.yaml; if hidden, set HF_TOKEN",
    ),
    (DisabledRepoError, "the hub has disabled the data set", "choose another revision or source"),
    (EntryNotFoundError, "the revision has no such file", "check `files` in sources.yaml"),
    (OfflineModeIsEnabled, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
    (httpx2.TimeoutException, "no answer in time", "type it again when the hub or the network is faster"),
)


def _status(error: HfHubHTTPError) -> tuple[str, str]:
    status = error.response.status_code
    if status == 429:
        wait = error.response.headers.get("Retry-After")
        return "429, too many requests", f"type it again in {f'{wait} s' if wait else 'some minutes'}"
    if status in (401, 403):
        return f"{status}, access refused", "set HF_TOKEN to a token that may read it"
    if status >= 500:
        return f"{status}, the hub is not well", "type it again later: a download goes on where it stopped"
    return f"status {status}", "check `repo`, `files` and `revision` in sources.yaml"
