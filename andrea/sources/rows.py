"""Rows of a file through `datasets`, streaming: of a verified local file, or of the hub at a pinned commit.

JSONL is read as text, a row a line, and each line is parsed by us (records.py): the library's own JSON reader stops at
the first line that is no object or whose types differ, which a data set of a million lines always has. Of Parquet only
the named columns are read, a few rows at a time. Memory is at worst a few times the text of one row group, as its
dictionary is decoded in one piece: 1.2 GB for a group of 260 MB, measured.

A Parquet file is always read to its end, also when an error elsewhere stops the pull: with these versions of the
libraries, a process that leaves such a stream half read may hang or abort at its exit (9 of 24 did).

The hub is named by a URL that holds the commit, hf://datasets/<repo>@<commit>/<file>. The usual load_dataset(<repo>,
revision=...) is not safe: a local folder of that name shadows the hub, and without a network the newest cached build
is returned, whatever the revision.
"""

import glob
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.errors import DataError
from andrea.sources.lockfile import Locked

BATCH = 1000


def local_url(path: Path) -> str:
    """The name by which a local file is read."""
    return glob.escape(str(path.absolute()))


def hub_urls(locked: Locked) -> list[str]:
    """The names by which files of the hub are read at their locked commit, piece by piece."""
    return [f"hf://datasets/{locked.repo}@{locked.revision}/{file.file}" for file in locked.files]


def lines(url: str) -> Iterator[str]:
    """The lines of a text file, without their ends; bytes that are not UTF-8 become U+FFFD."""
    for batch in _batches("text", url, BATCH, encoding_errors="replace"):
        yield from batch["text"]


def records(url: str, columns: tuple[str, ...], batch: int) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as {column: value}, `batch` of them in memory. DataError for a file that is none.

    Whoever stops early waits until the rest has been read.
    """
    import pyarrow
    import pyarrow.dataset

    # without this, all columns of a row group are fetched ahead and held beside what is decoded
    lean = pyarrow.dataset.ParquetFragmentScanOptions(use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False)
    options = {"columns": list(columns), "batch_size": batch, "fragment_scan_options": lean}
    batches = _batches("parquet", url, batch, **options)
    try:
        for values in batches:
            for row in zip(*(values[column] for column in columns), strict=True):
                yield dict(zip(columns, row, strict=True))
    except (pyarrow.ArrowException, KeyError) as cause:
        must = f"{url} must be a Parquet file with the columns {', '.join(columns)}"
        raise DataError(must, got=cause, fix="check `files` and `form` in sources.yaml") from cause
    finally:
        for _ in batches:
            pass


def _batches(builder: str, url: str, size: int, **options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as cache:  # a stream leaves nothing worth keeping
        table = _library().load_dataset(
            builder, data_files={"train": [url]}, split="train", streaming=True, cache_dir=cache, **options
        )
        yield from table.iter(batch_size=size)


def _library() -> Any:
    """`datasets`, told to give up on a dead server after seconds, not ten minutes."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.STREAMING_READ_MAX_RETRIES = 2
    datasets.config.STREAMING_READ_RETRY_INTERVAL = 0.5
    datasets.config.STREAMING_OPEN_MAX_RETRIES = 2
    datasets.config.STREAMING_OPEN_RETRY_INTERVAL = 0.5
    return datasets
