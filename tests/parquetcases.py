"""Small Parquet files in memory, and a hub that serves a data set of the catalogue from them."""

import io
from typing import Any

import pyarrow
import pyarrow.parquet
from hubstub import Hub, Repo

from andrea.sources.catalogue import Dataset


def parquet(rows: list[dict[str, Any]], group: int = 1000) -> bytes:
    """`rows` as a Parquet file with row groups of `group` rows."""
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, row_group_size=group)
    return sink.getvalue()


def serve_files(dataset: Dataset, contents: list[bytes], **settings: Any) -> Hub:
    """A hub that has `dataset` at its pinned commit: one content a file, in the catalogue's order."""
    return Hub({dataset.repo: Repo(dict(zip(dataset.files, contents, strict=True)), dataset.revision)}, **settings)


def chat(number: int, system: str = "") -> dict[str, Any]:
    """A row as smol-smoltalk has it."""
    said = [("system", system)] if system else []
    said += [("user", f"Question {number}?"), ("assistant", f"Answer {number}.")]
    return {"messages": [{"content": text, "role": role} for role, text in said], "source": "test"}
