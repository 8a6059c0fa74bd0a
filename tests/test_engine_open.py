"""Opening an engine, and the versions that bits depend on."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from andrea.engine import open_engine, open_inference, versions
from andrea.engine.layout import count
from andrea.engine.loops import cache
from andrea.errors import EngineError
from andrea.experiment import Experiment, load

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(EXPERIMENTS / "ANDREA-TINY-TRAIN.json")


def test_cpu(tiny: Experiment) -> None:
    """Guards the whole way from a file to losses."""
    made = open_engine(tiny, threads=2)
    n = count(tiny.shape)
    made.load(np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32), 0)
    losses, norms = made.run(np.zeros((1, 4, 257), np.int32), np.zeros(1))
    assert losses[0] == pytest.approx(np.log(513), rel=1e-6)
    assert norms[0] == 0


def test_cuda_says_what_to_do(tiny: Experiment) -> None:
    """Guards against a silent fallback: no CUDA engine is an error that names the ways on."""
    wanted = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, engine="cuda"))
    with pytest.raises(EngineError) as caught:
        open_engine(wanted, threads=1)
    assert "cuda13" in str(caught.value)
    assert '"engine": "cpu"' in str(caught.value)


def test_a_model_in_use_needs_no_other_training(tiny: Experiment) -> None:
    """`andrea chat --engine cuda` without a card told people to edit the experiment."""
    with pytest.raises(EngineError) as caught:
        open_inference(tiny.shape, "cuda", "bf16", threads=1)
    assert "leave out --engine cuda" in str(caught.value) and "train section" not in str(caught.value)


def test_versions() -> None:
    """Guards the record of a run: everything that can change a bit is in it, as text."""
    found = versions()
    assert {"numpy", "numba", "llvmlite", "blas", "blas_core", "cpu"} <= set(found)
    assert all(isinstance(value, str) and value for value in found.values())


def test_compiled_code_is_named_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against stale code: Numba itself does not see an edit of a function in another file."""
    before = cache.folder()
    changed = tmp_path / "kernels.py"
    changed.write_text("ATTENTION_TILE = 16\n", encoding="utf-8")
    monkeypatch.setattr(cache.kernels, "__file__", str(changed))
    assert cache.folder() != before


def test_no_folder_for_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a read-only installation: the error says what to set."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setattr(cache, "__file__", str(blocked / "cache.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(EngineError, match="a folder that can be written"):
        cache._base("")
    assert cache._base(str(tmp_path)) == tmp_path


def test_folders_of_old_code_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edit of a loop left a folder of compiled code for ever; the one in use must stay, however old it is."""
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", str(tmp_path))
    names = [cache.folder().name, *(f"loops-{n}" for n in range(cache.KEPT + 2)), "other"]
    for age, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    cache.drop_old()
    kept = {cache.folder().name, "other", *(f"loops-{n}" for n in range(3, cache.KEPT + 2))}
    assert {path.name for path in tmp_path.iterdir()} == kept
