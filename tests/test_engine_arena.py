"""Memory is known before it is used, and nothing is taken afterwards."""

import dataclasses
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from engine_cases import batches, engine, rates

from andrea.engine.arena import Arena, plan_memory, require_memory
from andrea.engine.layout import count
from andrea.engine.plan import ALIGN, Buffer, make_plan
from andrea.errors import EngineError
from andrea.experiment import load

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*-TRAIN.json"))
PLAN = make_plan(
    [Buffer("weights", "w", (3, 5)), Buffer("batches", "ids", (7,), "int32"), Buffer("weights", "b", (1,))]
)


def test_views() -> None:
    """Guards overlap and alignment: each buffer keeps what was written into it."""
    arena = Arena(PLAN)
    for i, buffer in enumerate(PLAN.buffers):
        view = arena.take(buffer.name)
        assert view.shape == buffer.shape
        assert view.dtype == buffer.dtype
        assert view.ctypes.data % ALIGN == 0
        view[:] = i
    assert [float(arena.take(b.name).max()) for b in PLAN.buffers] == [0, 1, 2]


def test_request_after_seal() -> None:
    """Guards the promise that nothing is allocated during training."""
    arena = Arena(PLAN)
    arena.take("w")
    arena.seal()
    with pytest.raises(EngineError, match="nothing is allocated after the start"):
        arena.take("w")


def test_request_without_plan() -> None:
    """Guards the plan: what is not in it does not exist."""
    with pytest.raises(EngineError, match="planned before it is taken"):
        Arena(PLAN).take("surprise")


def test_plan_adds_up() -> None:
    """Guards the printed table."""
    assert PLAN.total == sum(b.nbytes for b in PLAN.buffers) == 3 * ALIGN
    assert PLAN.parts == (("weights", 2 * ALIGN), ("batches", ALIGN))
    assert "total" in str(PLAN)
    with pytest.raises(AssertionError, match="twice"):
        make_plan([PLAN.buffers[0], PLAN.buffers[0]])


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_shipped_experiments_fit(path: Path) -> None:
    """Guards the smallest card that is supported: every shipped experiment stays below 7 GiB, and none is empty."""
    plan, experiment = plan_memory(load(path)), load(path)
    assert 16 * count(experiment.shape) < plan.total < 7.0 * 2**30
    assert {"weights", "gradients", "m", "v", "activations", "workspace", "batches"} <= {name for name, _ in plan.parts}


def test_plan_grows_with_the_batch() -> None:
    """Guards the plan against constants: more rows at a time need more, more microbatches less."""
    path = next(p for p in EXPERIMENTS if p.stem == "ANDREA-12M-TRAIN")
    small = load(path)

    def total(**changes: int) -> int:
        return plan_memory(dataclasses.replace(small, train=dataclasses.replace(small.train, **changes))).total

    batch = small.train.batch_size
    assert total(batch_size=2 * batch) > 1.3 * total()
    twice = total(batch_size=2 * batch, microbatches=2 * small.train.microbatches)
    assert total() <= twice < 1.001 * total()  # the tokens of a whole step lie on the card


@pytest.mark.parametrize(
    ("sizes", "told"),
    [({"d_model": 16384, "n_heads": 1}, "parameters"), ({"context": 65536, "d_model": 4096}, "GB of main memory")],
)
def test_a_model_too_large_for_the_machine_is_refused(
    sizes: dict[str, int], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against the system's own way: it promises the memory and kills the process when it is used."""
    experiment = load(next(p for p in EXPERIMENTS if p.stem == "ANDREA-TINY-TRAIN"))
    require_memory(experiment)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**33 // 4096}.__getitem__)
    with pytest.raises(EngineError, match=told):
        require_memory(dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, **sizes)))


def test_engine_holds_its_plan() -> None:
    """Guards plan() of an engine: what it holds is what plan_memory says for its experiment."""
    path = next(p for p in EXPERIMENTS if p.stem == "ANDREA-TINY-TRAIN")
    experiment = load(path)
    made = engine(experiment.shape, partitions=experiment.train.partitions, batch_size=experiment.train.batch_size)
    assert made.plan() == plan_memory(experiment)


def test_training_allocates_nothing() -> None:
    """Guards the arena from the other side: what Python and NumPy hold does not grow while steps run."""
    made = engine()
    made.run(batches(2), rates(2))
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        made.run(batches(20), rates(20))
        after = tracemalloc.take_snapshot()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    growth = sum(s.size_diff for s in after.compare_to(before, "filename"))
    smallest = min(b.nbytes for b in made.plan().buffers if b.name == "0.h.0")
    assert growth < 50_000
    assert peak < 200_000 + 4 * np.prod(batches(20).shape), f"peak {peak}, one activation is {smallest}"
