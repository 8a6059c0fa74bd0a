"""Finding and opening a trained model: every file beside it is foreign until it has been checked."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tiny_run import NAME
from trained_model import STEP, edit, make_model

from andrea.errors import AndreaError, CheckpointError, DataError
from andrea.talk.model import open_model
from andrea.tokenizer.exported import from_segments, to_bytes


def test_a_model_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People type what the target was called, or point at what they were sent."""
    folder = make_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("mini", "ANDREA-MINI", "results/ANDREA-MINI", "results/ANDREA-MINI/model.bin", str(folder)):
        model = open_model(name)
        assert (model.name, model.step, model.precision) == (NAME, STEP, "fp32")
    assert len(model.weights) > 1000
    (tmp_path / "mini").mkdir()
    assert open_model("mini").name == NAME  # an empty folder of that name is not meant


@pytest.mark.parametrize("name", ["nano", "results/nano", "../mini", ""])
def test_a_model_that_is_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what there is."""
    make_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="must be a trained model") as caught:
        open_model(name)
    assert NAME in caught.value.got


@pytest.mark.parametrize("file", ["resolved.json", "tokenizer.json"])
def test_what_belongs_to_a_model_must_lie_beside_it(file: str, tmp_path: Path) -> None:
    """A model.bin alone says nothing about its sizes."""
    folder = make_model(tmp_path)
    (folder / file).unlink()
    with pytest.raises(DataError, match="beside it") as caught:
        open_model(str(folder))
    assert file in caught.value.got


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("experiment.model.d_model", 25, "a divisor of 25"),
        ("experiment.model.d_model", 48, "must hold the"),
        ("experiment.model.n_layers", 10**9, "1 to 256"),
        ("experiment.model.n_heads", 0, "1 to 256"),
        ("experiment.model.context", "32", "must be a count"),
        ("experiment.model.tied_head", 1, "true or false"),
        ("experiment.tokenizer.segments", 10**12, "at most 1,000,000"),
        ("experiment.tokenizer.segments", 4, "the model's own tokenizer"),
        ("experiment.name", "../../etc", "like ANDREA-TINY"),
        ("experiment", [], "must be an object"),
        ("tokenizer_sha256", "0" * 64, "the model's own tokenizer"),
    ],
)
def test_sizes_are_not_believed(place: str, value: object, words: str, tmp_path: Path) -> None:
    """A wrong size would read foreign memory, or ask the system for terabytes."""
    folder = make_model(tmp_path)
    edit(folder / "resolved.json", place, value)
    with pytest.raises(AndreaError, match=words):
        open_model(str(folder))


def test_the_tokenizer_of_another_model(tmp_path: Path) -> None:
    """As large as the right one: only its hash gives it away."""
    folder = make_model(tmp_path)
    (folder / "tokenizer.json").write_bytes(to_bytes(from_segments([b" a", b"bc", b"de"]).document))
    with pytest.raises(DataError, match="the model's own tokenizer"):
        open_model(str(folder))


def test_a_damaged_model(tmp_path: Path) -> None:
    """Cut short, empty, or with weights that are no numbers."""
    path = make_model(tmp_path) / "model.bin"
    data = bytearray(path.read_bytes())
    for broken in (data[:-1], b"", data[:8], data[:8] + np.float32(np.nan).tobytes() + data[12:]):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match="must be a whole checkpoint file"):
            open_model(str(path))


def test_a_lying_header_takes_no_memory(tmp_path: Path) -> None:
    """A sparse file of 25 GB costs nothing to make; its weights were read before they were counted."""
    folder = make_model(tmp_path)
    many = 2**31 - 1
    with open(folder / "model.bin", "wb") as file:
        file.write(np.array([STEP, many], "<i4").tobytes())
        file.truncate(8 + 12 * many)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="parameters"):
        open_model(str(folder))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 28
