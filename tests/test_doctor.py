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


def test_cuda_versions_are_read_as_people_write_them() -> None:
    assert module._dotted("13000") == "13.0"
    assert module._dotted("12080") == "12.8"
