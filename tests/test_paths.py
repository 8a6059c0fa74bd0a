"""Where the stages keep their files, and which of a user's own files count."""

import dataclasses
import os
from pathlib import Path

import pytest

from andrea import paths
from andrea.errors import ExperimentError
from andrea.experiment import Experiment, load

TINY = Path(__file__).resolve().parent.parent / "experiments" / "ANDREA-TINY-TRAIN.json"


def with_texts(name: str, folder: str) -> Experiment:
    tiny = load(TINY)
    spec = dataclasses.replace(tiny.sources["chitchat"], files=folder)
    return dataclasses.replace(tiny, name=name, sources={"texts": spec})


@pytest.mark.parametrize(
    ("name", "short"), [("ANDREA-TINY", "tiny"), ("ANDREA-12M-FP32", "12m_fp32"), ("ANDREA-120M", "120m")]
)
def test_targets_are_named_after_experiments(name: str, short: str) -> None:
    """Guards against a target that nobody guesses."""
    assert paths.short_name(name) == short


def test_every_stage_is_asked_for() -> None:
    """Guards against the staleness trap: a target that asks for the report alone finds nothing to do."""
    files = paths.every_file(load(TINY))
    assert len(set(files)) == len(files)
    for part in (
        "data/raw/chitchat/0.9.0/manifest.json",
        "data/ANDREA-TINY/megachat/chitchat.heldout.txt.zst",
        "data/ANDREA-TINY/tokenizer/tokenizer.json",
        "data/ANDREA-TINY/tokens/synthetic-chat.train.btok",
        "results/ANDREA-TINY/model.bin",
        "results/ANDREA-TINY/archive/5000/manifest.json",
        "results/ANDREA-TINY/report.html",
    ):
        assert part in files


def test_own_texts_are_those_that_the_pull_reads(tmp_path: Path) -> None:
    """Guards against a rerun for a file that is not read, and against an edited text that goes unnoticed."""
    for name in ("a.txt", "deep/er/b.JSONL", "notes.md", ".hidden/d.txt", ".e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [Path(path).relative_to(tmp_path).as_posix() for path in paths.own_texts(str(tmp_path))]
    assert found == ["a.txt", "deep/er/b.JSONL"]
    assert paths.own_texts(None) == []
    assert paths.own_texts(str(tmp_path / "absent")) == []


@pytest.mark.parametrize("name", [b"c {x}.txt", b"caf\xe9.txt", b"two\nlines.txt"])
def test_a_name_that_snakemake_cannot_keep_is_refused(tmp_path: Path, name: bytes) -> None:
    """Guards against Snakemake's own traceback, after the user has waited for other stages."""
    open(os.fsencode(tmp_path) + b"/" + name, "w").close()
    with pytest.raises(ExperimentError, match="have no braces"):
        paths.own_texts(str(tmp_path))


def test_one_name_is_one_folder() -> None:
    """Guards against an experiment that trains on another one's texts: both are pulled to data/raw/texts/local."""
    same = [with_texts("ANDREA-A", "mine"), with_texts("ANDREA-B", "mine")]
    assert list(paths.raw_datasets(same)) == ["data/raw/texts/local/manifest.json"]
    assert paths.clashes(same) == {}
    assert paths.clashes([*same, with_texts("ANDREA-C", "theirs"), load(TINY)]).keys() == {
        "ANDREA-A",
        "ANDREA-B",
        "ANDREA-C",
    }
