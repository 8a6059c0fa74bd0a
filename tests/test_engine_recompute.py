"""Recomputation changes memory and time, and no bit: proven on the list of launches, without a card."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_trace import SIDE, contents, races, traced
from test_cuda_binding import EXPERIMENTS, built

from andrea.engine import Choice
from andrea.engine.arena import plan_memory
from andrea.engine.cuda import buffers
from andrea.engine.cuda import model as model_module
from andrea.engine.recompute import shared
from andrea.experiment import Experiment, Shape, TrainSpec, load

SHAPE = Shape(vocab_size=101, d_model=64, n_heads=2, n_layers=4, context=32, tied_head=True)
NAMES = {path.stem: path for path in EXPERIMENTS}


def spec(precision: str, recompute: bool, microbatches: int = 1) -> TrainSpec:
    return TrainSpec(
        "cuda", precision, 1, 4, microbatches, recompute, 100, 100, 1e-3, 0.1, 5, 0.9, 0.999, 1e-8, 0.1, 1.0, 2
    )  # fmt: skip


def with_train(experiment: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, **changes))


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("precision", "plain", "microbatches", "arch"),
    [
        ("bf16", False, 1, 90),
        ("bf16", False, 1, 89),
        ("fp16", False, 2, 90),
        ("fp32", False, 2, 90),
        ("bf16", True, 1, 90),
        ("fp8", False, 1, 90),
    ],
)
def test_the_same_launches_on_the_same_values(
    layers: int, precision: str, plain: bool, microbatches: int, arch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards every gradient: a launch left out, or one that reads what another layer wrote, gives another name."""
    shape = dataclasses.replace(SHAPE, n_layers=layers)
    trains = [spec(precision, recompute, microbatches) for recompute in (False, True)]
    devices = [traced(shape, train, monkeypatch, plain=plain, arch=arch) for train in trains]
    kept, again = (contents(device, noise) for noise, device in enumerate(devices))
    assert kept == again
    lengths = [len(device.graphs[0]) for device in devices]
    assert (lengths[1] > lengths[0]) is (layers > 1)
    assert lengths[1] - lengths[0] < microbatches * 10 * layers


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(("precision", "tied"), [("bf16", True), ("bf16", False), ("fp8", True)])
def test_no_two_streams_meet(
    precision: str, recompute: bool, microbatches: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the order of weight gradients on the side: a race changes bits once in a thousand steps."""
    shape = dataclasses.replace(SHAPE, tied_head=tied)
    device = traced(shape, spec(precision, recompute, microbatches), monkeypatch)
    assert sum(launch.stream == SIDE for launch in device.graphs[0]) == 1 + microbatches * (4 * shape.n_layers + 1)
    assert races(device) == []


def test_a_missing_second_place_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: with one att and one y for all layers, the layer below would overwrite what is being read."""
    monkeypatch.setattr(buffers, "shared", lambda layers, doubled: shared(layers, doubled=False))
    found = races(traced(SHAPE, spec("bf16", True), monkeypatch))
    assert any("k_layernorm_fwd" in pair for pair in found)
    assert any("k_attn_fwd" in pair for pair in found)


def test_a_launch_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: without the last launch, h is another layer's."""
    kept = contents(traced(SHAPE, spec("bf16", False), monkeypatch), 0)
    whole = model_module._made_again
    monkeypatch.setattr(model_module, "_made_again", lambda block: whole(block)[:-1])
    again = contents(traced(SHAPE, spec("bf16", True), monkeypatch), 1)
    assert again["losses"] == kept["losses"]
    assert again["gradients"] != kept["gradients"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("microbatches", [1, 4, 8])
def test_shipped_experiments_bind(name: str, microbatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards shapes, and sampling, whose cache moves into the layers' outputs; eight parts leave one row a part."""
    experiment = with_train(load(NAMES[name]), microbatches=microbatches, recompute=True)
    engine, device = built(experiment, monkeypatch, plain=False)
    layers, shape, train = experiment.shape.n_layers, experiment.shape, experiment.train
    captured = 2 * microbatches  # once to load the code, once to capture

    def launched(name: str) -> int:
        return device.launches[f"k_{name}"] + device.launches[f"k_fp8_{name}"]

    assert launched("layernorm_bwd") == captured * (2 * layers + 1)
    # evaluation too; never again in backward, but where it comes with h
    again = layers - 1 if train.precision in ("bf16", "fp16") else 0
    assert launched("gelu_fwd") + launched("mlp_gelu_fwd") == captured * (layers + again) + 2 * layers
    assert launched("attn_fwd") == captured * (2 * layers - 1) + 2 * layers
    batch = np.zeros((2, train.batch_size, shape.context + 1), np.int32)
    engine.run(batch, np.full(2, 1e-3))
    assert len(engine.generate([[1, 2], [3], [4], [5], [6]], 3, Choice(1.0, 3), seed=1, step=1)) == 5


def test_sampling_shares_no_memory_with_evaluation() -> None:
    """A card writes samples while it validates: the cache lies where no forward op writes, if it fits there."""
    shape = load(NAMES["ANDREA-12M-TRAIN"]).shape
    found = {b.name: b for b in buffers.cuda_buffers(shape, 8, "bf16")}
    assert found["cache"].inside == "gradients"
    assert 2 * np.prod(found["cache"].shape) <= 4 * np.prod(found["gradients"].shape)
    assert "cache" not in {b.name for b in buffers.cuda_buffers(shape, 8, "fp32")}


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("recompute", [False, True])
def test_sampling_has_its_place(rows: int, recompute: bool) -> None:
    """Guards a cache that the gradients cannot hold: whole, apart from what a token writes, and no layer's in another's."""
    shape = dataclasses.replace(SHAPE, context=4096)
    found = {b.name: b for b in buffers.cuda_buffers(shape, rows, "bf16", recompute=recompute)}
    caches = [found[f"cache.{layer}"] for layer in range(SHAPE.n_layers)]
    places = [b.inside or b.name for b in caches]
    assert len(set(places)) == SHAPE.n_layers
    assert not {"x.0", "x.1", "att.0", "wide", "a", "logits"} & set(places)
    for cache in caches:
        assert 1 <= cache.shape[0] <= 4
        home = found[cache.inside or cache.name]
        assert not home.inside
        assert np.prod(cache.shape) <= np.prod(home.shape)


@pytest.mark.parametrize(
    ("name", "precision", "most", "saved"),
    [
        ("ANDREA-12M", "bf16", 0.62, 0.3),
        ("ANDREA-12M", "fp32", 0.70, 0.6),
        ("ANDREA-120M", "bf16", 2.5, 1.3),
        ("ANDREA-120M", "fp16", 2.5, 1.3),
    ],
)
def test_what_it_saves(name: str, precision: str, most: float, saved: float) -> None:
    """Guards the point of it, in GiB at the shipped 8 x 1024."""
    experiment = with_train(load(NAMES[name + "-TRAIN"]), precision=precision)
    kept, again = (plan_memory(with_train(experiment, recompute=r)).total / 2**30 for r in (False, True))
    assert again <= most
    assert kept - again >= saved


def test_layers_take_turns() -> None:
    """Guards the last layer's y against the final LayerNorm's, which has a place of its own, also with a single layer."""
    assert shared(1, doubled=True) == {}
    two, one = shared(5, doubled=True), shared(5, doubled=False)
    assert [two.get(f"att.{i}", f"att.{i}") for i in range(5)] == ["att.0", "att.1", "att.0", "att.1", "att.0"]
    assert {one.get(f"y.{2 * i}", f"y.{2 * i}") for i in range(5)} == {"y.0"}
    assert not any(name in two or name in one for name in ("x.0", "x.2", "x.10", "y.10"))
    assert not set(two) & set(two.values())


def test_needs_its_engine() -> None:
    """Guards against a setting that is read and then ignored."""
    from andrea.errors import ExperimentError

    tiny = load(Path("experiments/ANDREA-TINY-TRAIN.json")).to_json()
    tiny["train"]["recompute"] = True
    with pytest.raises(ExperimentError, match='"engine": "cpu" goes with "recompute": false'):
        Experiment.from_json(tiny, "mine.json")
