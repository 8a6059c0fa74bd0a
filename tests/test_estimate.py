"""What is told about time before a run: counted from the model, equal everywhere it stands, and true where it was measured."""

import csv
import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from andrea.cards import CARDS, H200, Card
from andrea.estimate import cuda_seconds, fits, floor_seconds, share, step_seconds
from andrea.experiment import Experiment, load
from andrea.progress import short_time
from andrea.show import show
from andrea.work import step_work

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """benchmarks/speed_page.py."""
    spec = importlib.util.spec_from_file_location("speed_page", ROOT / "benchmarks/speed_page.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shipped(name: str, **changes: object) -> Experiment:
    e = load(ROOT / f"experiments/ANDREA-{name}-TRAIN.json")
    return dataclasses.replace(e, train=dataclasses.replace(e.train, **changes))


def test_the_page_says_what_the_code_computes(page: ModuleType) -> None:
    """A kernel was added and the page went on promising the old hours. Remedy: python benchmarks/speed_page.py."""
    text = page.PAGE.read_text()
    assert all(f"<!-- table: {name} -->" in text for name in page.TABLES)
    assert page.filled(text) == text


@pytest.mark.parametrize("name", ["12M", "12M-FP32", "120M"])
def test_show_says_what_the_page_says(name: str, page: ModuleType) -> None:
    """Two sums of the same thing differ sooner or later."""
    told, e = show(shipped(name)), shipped(name)
    rows = [line.split(" | ") for line in page.table("runs").splitlines() if line.startswith(f"| {e.name},")]
    assert len(rows) == len(CARDS)
    for row in rows:
        line = next(line for line in told.splitlines() if line.strip().startswith(row[1] + " "))
        assert f"about {row[6].removesuffix(' |')}, {row[4]} steps/s" in line


@pytest.mark.parametrize(
    ("name", "precision"), [("12M", "bf16"), ("120M", "bf16"), ("12M", "fp32"), ("12M", "tf32")]
)  # fmt: skip
def test_shares_are_the_measured_ones(name: str, precision: str) -> None:
    """The engine became faster and the estimate did not: SHARES are floor over the newest time in benchmarks/results.csv."""
    e = shipped(name, precision=precision)
    size = f"{e.train.batch_size}x{e.model.context}, 1 microbatches"
    with (ROOT / "benchmarks/results.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["what"] == "train step" and r["dtype"] == precision]
    times = [float(r["ms_p50"]) for r in rows if r["shape"].startswith(f"{e.name} ") and r["shape"].endswith(size)]
    assert share(e.shape, precision) == pytest.approx(1e3 * floor_seconds(e.shape, e.train, H200) / times[-1], rel=0.03)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_floor_is_a_floor(card: Card) -> None:
    """No faster than all operations at peak, nor than all bytes; more work never takes less time."""
    e = shipped("12M")
    w = step_work(e.shape, e.train)
    floor = floor_seconds(e.shape, e.train, card)
    assert floor >= sum(x.times * x.flops for x in w) / card.half / 1e12
    assert floor >= sum(x.times * x.nbytes for x in w) / card.bandwidth / 1e9
    for changes in ({"recompute": True}, {"precision": "fp32"}, {"batch_size": 16}):
        more = shipped("12M", **changes)
        assert floor_seconds(more.shape, more.train, card) > floor
    double = shipped("12M", batch_size=16)
    assert floor_seconds(double.shape, double.train, card) < 2 * floor


def test_time_is_steps_times_a_step() -> None:
    """Guards the unit: seconds of the whole run."""
    e = shipped("12M", steps=1000)
    assert cuda_seconds(e, H200) == pytest.approx(1000 * step_seconds(e.shape, e.train, H200))
    assert short_time(cuda_seconds(e, H200)) == "2 s"


def test_a_small_card_is_told() -> None:
    """Hours on a card that cannot hold the model are no use."""
    assert fits(7 * 2**30, dataclasses.replace(H200, memory=8))
    assert not fits(7 * 2**30 + 1, dataclasses.replace(H200, memory=8))
    lines = show(shipped("120M", batch_size=256)).splitlines()
    assert "too small: 12 GiB" in next(line for line in lines if "RTX 3060" in line)
    assert "steps/s" in next(line for line in lines if "H200  " in line)
