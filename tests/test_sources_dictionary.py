"""The dictionary: one document a headword with all its senses, from CSV that a hub keeps in git itself."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hubcases import led_to
from hubstub import Hub, Repo
from hypothesis import given
from hypothesis import strategies as st

from andrea import megachat
from andrea.errors import DataError
from andrea.files import sha256_bytes
from andrea.sources import dictionary, hub
from andrea.sources.catalogue import find_dataset
from andrea.sources.dictionary import Sense
from andrea.sources.pull import pull
from andrea.sources.shards import read_bucket, read_manifest

WORDNET = find_dataset("wordnet-definitions")
ROWS = [
    ("bank", "sloping land beside water", "they pulled the canoe up on the bank"),
    ("null", "nothing", '"it was all for null"'),
    ("to-do", 'a "great" stir,\nin two lines', ""),
    ("bank", "a long ridge or pile", "a huge bank of earth"),
    ("bank", "sloping land beside water", "he sat on the bank"),
    ("", "a definition of no word", "x"),
]


def table(rows: list[tuple[str, ...]], columns: tuple[str, ...] = dictionary.COLUMNS) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *rows])
    return text.getvalue().encode()


def serve(data: bytes, **settings: Any) -> Hub:
    """A hub whose dictionary is `data`, kept in git itself."""
    return Hub({WORDNET.repo: Repo({WORDNET.files[0]: data}, WORDNET.revision, WORDNET.files)}, **settings)


def pull_to(folder: Path, *, offline: bool = False) -> dict[str, Any]:
    pull(WORDNET.name, folder / "raw", lock=folder / "lock.json", offline=offline, files=None)
    return read_manifest(folder / "raw")


def test_a_headword_is_one_document_in_the_stated_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the form, the gathering of senses that stand apart, and words that some readers take for missing values."""
    with serve(table(ROWS)) as server, led_to(server.url, monkeypatch):
        manifest = pull_to(tmp_path)
    texts = [megachat.encode(document) for document in read_bucket(tmp_path / "raw", manifest, "all")]
    first = "1. sloping land beside water (example: they pulled the canoe up on the bank)"
    assert texts == [
        f"> define bank\n< bank:\n{first}\n2. a long ridge or pile (example: a huge bank of earth)",
        "> define null\n< null: nothing (example: it was all for null)",
        '> define to-do\n< to-do: a "great" stir, in two lines',
    ]
    assert manifest["dropped"] == {"a definition for the second time": 1, "a sense without word or definition": 1}


def test_a_file_without_a_sha256_is_locked_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards files that the hub keeps in git: the lock must hold their sha256, and a later change must be refused."""
    data = table(ROWS)
    with serve(data) as server, led_to(server.url, monkeypatch):
        first = pull_to(tmp_path)
    [locked] = json.loads((tmp_path / "lock.json").read_bytes())["datasets"][WORDNET.name]["files"]
    assert locked == {"file": WORDNET.files[0], "size": len(data), "sha256": sha256_bytes(data)}
    assert pull_to(tmp_path, offline=True) == first
    (tmp_path / "raw" / "download" / WORDNET.files[0]).write_bytes(data.replace(b"bank", b"tank"))
    with pytest.raises(DataError, match="with the sha256"):
        pull_to(tmp_path, offline=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"flip": True}, "that are not git's"),
        ({"commit_header": "0" * 40}, "X-Repo-Commit"),
        ({"short": 1}, "where the lock file says"),
    ],
)
def test_other_bytes_than_git_names_are_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], says: str
) -> None:
    """Guards the first pull, the one that all later ones are compared with."""
    with (
        serve(table(ROWS), **settings) as server,
        led_to(server.url, monkeypatch),
        pytest.raises(DataError, match=says),
    ):
        pull_to(tmp_path)
    assert not (tmp_path / "lock.json").exists()


def test_a_large_file_without_a_sha256_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: such a file is read in one piece."""
    monkeypatch.setattr(hub, "PLAIN_BYTES", 10)
    with (
        serve(table(ROWS)) as server,
        led_to(server.url, monkeypatch),
        pytest.raises(DataError, match="neither a sha256 nor a small size for train"),
    ):
        pull_to(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        table(ROWS, ("Term", "Definition", "Example")),
        table([("a", "b" * 200_000, "")]),
        table([("a", "b\nc", "")]) + b'd,"e,f\ng,h,i\n',
        table([("a", "b\nc", "")]) + b'd,"e,f\ng,"h",i\n',
    ],
    ids=["empty", "other columns", "a field without end", "a quote open to the end", "a quote open to the next"],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, data: bytes) -> None:
    """An open quote took in the rows behind it, and nobody was told."""
    path = tmp_path / "train.csv"
    path.write_bytes(data)
    line = 1 if b"Term" in data or not data else 4 if b'"e' in data else 2
    with pytest.raises(DataError, match=rf"(?s)must be CSV with the columns Word, .*begins at line {line}\n"):
        list(dictionary.senses([path]))


def test_odd_rows_end_nothing(tmp_path: Path) -> None:
    """Guards short and long rows, a byte order mark, other columns, and bytes that are no UTF-8."""
    path = tmp_path / "train.csv"
    rows = b"1,short,in\r\n2,long,very,,more\r\n3,bytes,\xff,\r\n4\r\n"
    path.write_bytes(b"\xef\xbb\xbfId,Word,Definition,Example\r\n" + rows)
    found = list(dictionary.items(dictionary.senses([path])))
    assert [item.parsed.document.turns[1].text for item in found if item.parsed] == ["short: in", "long: very"]
    reasons = ["U+FFFD: bytes that are no UTF-8", "a sense without word or definition"]
    assert [item.reason for item in found if not item.parsed] == reasons


@given(st.lists(st.builds(Sense, *3 * [st.sampled_from(["", "a", "b\nc", "> d", "e: f"])])))
def test_every_sense_is_a_line_or_counted(senses: list[Sense]) -> None:
    """Guards against senses that vanish: sizes add up, and each word and meaning comes up once."""
    found = list(dictionary.items(senses))
    assert sum(item.size for item in found) == len(senses)
    words = [item.parsed.document.turns[0].text.removeprefix("define ") for item in found if item.parsed]
    assert words == list(dict.fromkeys(sense.word for sense in senses if sense.word and sense.definition))
    kept = {(sense.word, sense.definition) for sense in senses if sense.word and sense.definition}
    assert sum(item.size for item in found if item.parsed) == len(kept)
