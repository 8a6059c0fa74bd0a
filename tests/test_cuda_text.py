"""Which models are sampled from in one launch, and that both sides of that kernel mean the same sizes."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from test_cuda_binding import PaperDevice, built

from andrea.engine.cuda import nvrtc, text
from andrea.engine.cuda.text import cluster
from andrea.experiment import Shape, load

SMALL = Shape(vocab_size=101, d_model=64, n_heads=2, n_layers=2, context=77, tied_head=True)
HOPPER, SHIPPED = 232448, "experiments/ANDREA-{}-TRAIN.json"


class Card(PaperDevice):
    def __init__(self, arch: int, shared_limit: int) -> None:
        super().__init__()
        self.arch, self.shared_limit = arch, shared_limit


@pytest.mark.parametrize(("itemsize", "blocks"), [(2, 8), (4, 16)])
def test_every_block_has_columns(itemsize: int, blocks: int) -> None:
    """A block without any would never be waited for, and the others could run away from it."""
    assert cluster(Card(90, HOPPER), SMALL, itemsize) == blocks
    assert cluster(Card(90, HOPPER), dataclasses.replace(SMALL, d_model=32, n_heads=1), 2) == 0


@pytest.mark.parametrize("name", ["12M", "120M"])
def test_shipped_models_fit(name: str) -> None:
    """On Hopper; an older card has no clusters, and takes the kernels of one token."""
    shape = load(SHIPPED.format(name)).shape
    assert cluster(Card(90, HOPPER), shape, 2) == cluster(Card(90, HOPPER), shape, 4) == 16
    assert cluster(Card(89, HOPPER), shape, 2) == 0
    assert cluster(Card(120, HOPPER), shape, 2) == 8  # as many as every card with clusters can have


@pytest.mark.parametrize("change", [{"n_heads": 24}, {"vocab_size": 60000}, {"d_model": 4096, "n_heads": 64}])
def test_what_does_not_fit_takes_the_other_way(change: dict[str, int]) -> None:
    """Heads of half a quad, logits beyond shared memory, more columns than warps."""
    shape = dataclasses.replace(load(SHIPPED.format("12M")).shape, **change)
    assert cluster(Card(90, HOPPER), shape, 2) == 0


@pytest.mark.parametrize(("arch", "launches"), [(90, {"k_text": 2}), (89, {"k_token_pick": 2})])
def test_the_engine_takes_what_fits(arch: int, launches: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for a whole text; elsewhere a graph, whose calls are seen when they are loaded and when it is captured."""
    monkeypatch.setattr(PaperDevice, "arch", arch)
    engine, device = built(load(SHIPPED.format("12M")), monkeypatch, plain=False)
    engine.generate([[1, 2]], 50, text_choice(), seed=1, step=1)
    assert {name: count for name, count in device.launches.items() if name in ("k_text", "k_token_pick")} == launches


def text_choice() -> Any:
    from andrea.engine import Choice

    return Choice(1.0, 3)


def test_constants_stand_the_same_on_both_sides() -> None:
    """A launch of another size would leave out columns, or write past the end of shared memory."""
    source = "".join((nvrtc.KERNELS / name).read_text() for name in ("token_cluster.cuh", "token_text.cu"))
    values = dict(re.findall(r"\b([A-Z_]+) = (\d+)[,;]", source))
    assert int(values["TEXT_BLOCK"]) == text.TEXT_BLOCK == 32 * text.TEXT_WARPS
    assert int(values["MAILBOXES"]) == text.MAILBOXES
    assert Path("kernels/token_text.cu").exists()
