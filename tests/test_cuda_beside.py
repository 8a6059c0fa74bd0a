"""Samples that are written beside an evaluation: on other memory, and waited for before anybody goes on. Without a card."""

from typing import Any

import pytest
from paper_trace import _meet, traced
from test_cuda_binding import PaperDevice, PaperStream, built
from test_engine_recompute import SHAPE, spec

from andrea.engine import Choice
from andrea.engine.cuda.text import cluster
from andrea.experiment import load

LOOKED_UP = ("weights", "copy")
MADE = ("cache", "text", "uniform", "sampling", "cache_at")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8"])
def test_an_evaluation_leaves_the_samples_alone(
    precision: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the plan of memory keeps the two streams apart; samples would be wrong now and then, unseen."""
    device = traced(SHAPE, spec(precision, recompute), monkeypatch)
    engine = device.engine
    assert engine._sampler._apart
    buffers, evaluation = engine._buffers, device.graphs[1]
    ours = [launch for launch in evaluation if not launch.what.startswith(("k_text", "k_copy_weights"))]  # of load()
    assert any(launch.what.startswith("k_loss_block_sums") for launch in ours)
    touched = [t for launch in ours for t in (*launch.reads, *launch.writes)]
    written = [t for launch in ours for t in launch.writes]
    assert not [name for name in MADE if any(_meet(buffers[name], t) for t in touched)]
    assert not [name for name in LOOKED_UP if any(_meet(buffers[name], t) for t in written)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """An engine of the 12M, and what its device is asked for from now on."""
    engine, device = built(load("experiments/ANDREA-12M-TRAIN.json"), monkeypatch, plain=False)
    assert cluster(device, engine._shape, 2) > 0, "a card that writes texts in one launch"
    said: list[str] = []

    def beside(_: PaperDevice) -> PaperStream:
        said.append("launch")
        return PaperStream()

    real = device.read
    monkeypatch.setattr(PaperDevice, "beside", property(beside))
    monkeypatch.setattr(device, "wait_beside", lambda: said.append("wait"), raising=False)
    monkeypatch.setattr(device, "read", lambda source: (said.append("read"), real(source))[1])
    return engine, said


def test_it_is_waited_for_before_it_is_read(started: tuple[Any, list[str]]) -> None:
    """The next steps write where the cache lies."""
    engine, said = started
    finish = engine.begin_generate([[1, 2], [3]], 50, Choice(1.0, 3), seed=1, step=1)
    assert said == ["launch"]
    assert [len(text) for text in finish()] == [50, 50]
    assert said == ["launch", "wait", "read"]


@pytest.mark.parametrize(("prompts", "tokens"), [([[1]] * 5, 10), ([[1], [2] * 1000], 26), ([], 10)])
def test_what_takes_more_than_one_launch_is_not_begun(
    prompts: list[list[int]], tokens: int, started: tuple[Any, list[str]]
) -> None:
    """More prompts than rows, a text past the context, no text: all of it is done in order, by the second half."""
    engine, said = started
    finish = engine.begin_generate(prompts, tokens, Choice(1.0, 3), seed=1, step=1)
    assert said == []
    assert [len(text) for text in finish()] == [tokens] * len(prompts)
    assert "launch" not in said and "wait" not in said
