"""The table of kernels without a card: every launch of a step is in it once, and the operations it counts are the model's."""

import dataclasses
import importlib
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_cuda_binding import built

from andrea.engine.cuda.weights import padded_vocabulary
from andrea.estimate import flops_per_token
from andrea.experiment import Experiment, load

MODULES = ("counts", "kernel_times", "pytorch", "rows", "timing", "train_step")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/kernel_times.py with an empty CuPy: nothing here is timed."""
    monkeypatch.syspath_prepend("benchmarks")
    for name in ("cupy", *MODULES):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # afterwards all are gone again
    for name in MODULES:
        del sys.modules[name]
    return importlib.import_module("kernel_times")


def variant(model: str, precision: str) -> Experiment:
    e = load(Path(f"experiments/ANDREA-{model}-TRAIN.json"))
    return dataclasses.replace(e, train=dataclasses.replace(e.train, precision=precision))


@pytest.mark.parametrize(("name", "precision"), [("12M", "bf16"), ("12M", "tf32"), ("120M", "fp16")])
def test_every_launch_of_a_step_is_counted_once(
    name: str, precision: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An op that is timed but not counted, or missed in the sum, would look like a gap between kernels."""
    experiment = variant(name, precision)
    engine, device = built(experiment, monkeypatch, plain=False)
    matrix = engine._matrix(side=False)
    model = kernels.Model(
        device, experiment.shape, precision, engine._rows, matrix, engine._buffers, None, recompute=False
    )
    step = counted_launches(device, engine._step_calls(model))
    del step["k_grad_norm_final"]  # it cannot be repeated alone, and is not timed
    table = kernels.launches(engine, experiment)
    counted = kernels.work(experiment.shape, engine._rows, precision, fused=precision != "tf32")
    assert set(table) == set(counted)
    assert all(what.times in (0, len(table[name])) for name, what in counted.items())
    calls = [call for name, sets in table.items() if counted[name].times for calls in sets for call in calls]
    assert counted_launches(device, calls) == step


def counted_launches(device: Any, calls: list[Any]) -> Counter[str]:
    device.launches.clear()
    for call in calls:
        call()
    return device.launches.copy()


@pytest.mark.parametrize("model", ["12M", "120M"])
def test_operations_are_the_models(model: str, kernels: Any) -> None:
    """A product forgotten or counted twice; apart from it, only padding and the larger backward of attention differ."""
    experiment = variant(model, "bf16")
    shape, rows = experiment.shape, 8
    counted = kernels.work(shape, rows, "bf16")
    flop = sum(what.times * what.flop for what in counted.values())
    padding = 6 * (padded_vocabulary(shape) - shape.vocab_size) * shape.d_model
    backward = shape.n_layers * shape.d_model * shape.context  # 2.5 times forward here, twice forward there
    assert flop == pytest.approx(rows * shape.context * (flops_per_token(shape) + padding + backward), rel=1e-12)


def test_a_step_is_the_sum_of_its_groups(kernels: Any) -> None:
    """A new op whose name fits no group must not fall out of the sum."""
    counted = kernels.work(variant("12M", "bf16").shape, 8, "bf16")
    groups = kernels.shares(counted, dict.fromkeys(counted, (0.0, 1000.0, 0.0)))
    assert sum(groups.values()) == sum(what.times for what in counted.values())
    assert all(groups.values())
