"""`andrea doctor` on a machine without a card: what is missing, and what to do, without a traceback."""

import pytest

from andrea import doctor as module
from andrea.errors import EngineError


def test_the_first_failure_ends_the_checks_with_a_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of failures that all follow from one would hide it."""

    def broken() -> str:
        raise EngineError("a card must be there", got="none", fix="plug one in")

    def never() -> str:
        raise AssertionError("checks after a failed one must be left out")

    monkeypatch.setattr(module, "_CHECKS", (("compiler", lambda: "NVRTC"), ("card", broken), ("kernels", never)))
    assert module.doctor() == 1
    text = capsys.readouterr().out
    assert "ok    compiler: NVRTC" in text
    assert "FAIL  card: a card must be there" in text
    assert "got: none" in text
    assert "fix: plug one in" in text


def test_driver_and_card_come_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a card the first line said that the compiler is fine, and the last one to install CuPy."""
    monkeypatch.setattr(module, "card_problem", lambda: "no NVIDIA driver on this machine (libcuda.so.1)")
    assert module.doctor() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAIL  driver: an NVIDIA card and its driver must be there"
    assert "the CUDA engine cannot run here" in lines[-2] and "train_tiny, needs none of this" in lines[-1]


def test_cuda_versions_are_read_as_people_write_them() -> None:
    assert module._dotted("13000") == "13.0"
    assert module._dotted("12080") == "12.8"
