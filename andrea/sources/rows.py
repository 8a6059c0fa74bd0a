"""Lines of a JSONL file through `datasets`, streaming: of a verified local file, or of the hub at a pinned commit.

The files are read as text, a row a line, and each line is parsed by us (records.py): the library's own JSON reader
stops at the first line that is no object or whose types differ, which a data set of a million lines always has.

The hub is named by a URL that holds the commit, hf://datasets/<repo>@<commit>/<file>. The usual load_dataset(<repo>,
revision=...) is not safe: a local folder of that name shadows the hub, and without a network the newest cached build
is returned, whatever the revision.
"""

import glob
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.sources.lockfile import Locked

BATCH = 1000


def local_lines(path: Path) -> Iterator[str]:
    """The lines of a local file, without their ends; bytes that are not UTF-8 become U+FFFD."""
    return _lines(glob.escape(str(path.absolute())))


def hub_lines(locked: Locked) -> Iterator[str]:
    """The lines of a file of the hub at its locked commit, fetched piece by piece."""
    return _lines(f"hf://datasets/{locked.repo}@{locked.revision}/{locked.file}")


def _lines(url: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as cache:  # a stream leaves nothing worth keeping
        table = _library().load_dataset(
            "text",
            data_files={"train": [url]},
            split="train",
            streaming=True,
            encoding_errors="replace",
            cache_dir=cache,
        )
        for batch in table.iter(batch_size=BATCH):
            yield from batch["text"]


def _library() -> Any:
    """`datasets`, told to give up on a dead server after seconds, not ten minutes."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.STREAMING_READ_MAX_RETRIES = 2
    datasets.config.STREAMING_READ_RETRY_INTERVAL = 0.5
    datasets.config.STREAMING_OPEN_MAX_RETRIES = 2
    datasets.config.STREAMING_OPEN_RETRY_INTERVAL = 0.5
    return datasets
