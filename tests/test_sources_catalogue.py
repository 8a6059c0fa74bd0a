"""The catalogue: what is shipped is whole, and an unknown name is met with the nearest one."""

import re

import pytest

from andrea.errors import DataError, ExperimentError
from andrea.experiment import SourceSpec
from andrea.sources import catalogue
from andrea.sources.catalogue import entry, find_dataset, load_catalogue, load_datasets, own_files

SPEC = SourceSpec(files=None, min_characters=0, max_characters=10, max_documents=None, exclude_words=())
OWN = SourceSpec(files="texts", min_characters=0, max_characters=10, max_documents=None, exclude_words=())


def test_the_shipped_sources() -> None:
    """Guards the names that experiments use, and that no text comes without licence and provenance."""
    assert list(load_catalogue()) == [
        "hermes3-general",
        "hermes3-creative",
        "hermes3-roleplay",
        "smoltalk",
        "oasst",
        "gutenberg",
        "dictionary",
        "chitchat",
        "synthetic-chat",
    ]
    for known in load_catalogue().values():
        assert known.licence
        assert len(known.provenance) > 30
        assert entry_of(known.dataset) == (known.revision, known.kind)
    assert load_datasets()["hermes3"].revision == "b1fddbdcae4e6714889365d1e6ce266a45289cc9"


def entry_of(dataset: str) -> tuple[str, str]:
    found = find_dataset(dataset)
    return found.revision, found.kind


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ExperimentError, match=re.escape('did you mean "hermes3-general"?')):
        entry("hermes-general", SPEC)
    with pytest.raises(DataError, match=re.escape('did you mean "chitchat"?')):
        find_dataset("chit-chat")
    known = "chitchat, gutenberg, hermes3, oasst2, smol-smoltalk, synthetic-chat, wordnet-definitions"
    with pytest.raises(DataError, match=f"choose one of: {known}"):
        find_dataset("xyz")


def test_own_text_is_a_data_set_of_its_own() -> None:
    """Guards the paths of own text: also under a name of the catalogue it is the user's, revision "local"."""
    for source in ("mine", "chitchat"):
        known = entry(source, OWN)
        assert (known.dataset, known.bucket, known.revision, known.kind) == (source, "all", "local", "files")
        assert known == own_files(source, "texts").entry("all")


def hub_entry(revision: str = "0" * 40, files: str = "[f]", form: str = "jsonl") -> str:
    """A catalogue of one data set of the hub."""
    facts = f"revision: '{revision}', files: {files}, form: {form}"
    return f"datasets: {{x: {{kind: hub, {facts}, buckets: [a], licence: l, provenance: p, repo: r, path: h}}}}\nsources: {{}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it must be YAML"),
        ("[1]", "its keys must be datasets and sources"),
        ("datasets: {x: {kind: ftp}}\nsources: {}", "the data set x must have a kind of"),
        ("datasets: {x: {kind: synthetic, revision: v1}}\nsources: {}", "the data set x must have a kind of"),
        (hub_entry(revision="main"), "the data set x must be pinned to a full commit"),
        (hub_entry(form="xml"), "the form of the data set x must be one of jsonl, messages, oasst, books, dictionary"),
        (hub_entry(files="[]"), "the files of the data set x must be a list of different names"),
        (hub_entry(files="[a, a]"), "the files of the data set x must be a list of different names"),
        (hub_entry(files="[../a]"), "the files of the data set x must be plain paths"),
        (hub_entry(files="[a/../b]"), "the files of the data set x must be plain paths"),
        (hub_entry(files="[/a]"), "the files of the data set x must be plain paths"),
        (
            "datasets: {}\nsources: {s: {dataset: x, bucket: all}}",
            "source s must name a data set and one of its buckets",
        ),
    ],
)
def test_an_edited_catalogue_is_checked(
    text: str, says: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("catalogue")
    (folder / "sources.yaml").write_text(text)
    monkeypatch.setattr(catalogue, "resource", lambda _: folder)
    functions = (catalogue._yaml, load_datasets, load_catalogue)
    for function in functions:
        function.cache_clear()
    try:
        with pytest.raises(DataError, match=says):
            load_catalogue()
    finally:
        for function in functions:
            function.cache_clear()
