"""What an estimate counts is what the engine would launch."""

import dataclasses

import pytest
from paper_trace import Launch, traced
from test_engine_recompute import NAMES

from andrea.experiment import load
from andrea.work import step_work

# For each tensor that a kernel writes, how much more of it crosses the memory than one writing: it is read too, or only a
# third (dq) or two (dk and dv) of it are meant.
CORRECTIONS = {
    "k_adamw": (1, 1, 1),
    "k_embed_bwd": (1, 1),
    "k_loss_fused": (0, 1),
    "k_attn_bwd_dq": (-2 / 3,),
    "k_attn_bwd_dkdv": (-4 / 3,),  # the trace says that it reads what it writes
}


def moved(launch: Launch) -> float:
    """Bytes of a launch."""
    factors = CORRECTIONS.get(launch.what.split("(")[0], ())
    return launch.nbytes + sum(f * t.nbytes for f, t in zip(factors, launch.writes, strict=False))


@pytest.mark.parametrize("name", ["ANDREA-12M-TRAIN", "ANDREA-120M-TRAIN"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("microbatches", "recompute"), [(1, False), (2, True)])
def test_launches_operations_and_bytes(
    name: str, precision: str, microbatches: int, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the estimate against an engine that has changed: every launch is counted, and what it computes and moves.

    It is made for cards that people have; Hopper's products with GELU in them move less.
    """
    e = load(NAMES[name])
    changes = {"precision": precision, "microbatches": microbatches, "recompute": recompute}
    train = dataclasses.replace(e.train, **changes)
    launches = [launch for launch in traced(e.shape, train, monkeypatch, arch=89).graphs[0] if not launch.sync]
    work = step_work(e.shape, train)
    assert sum(w.times for w in work) == len(launches)
    products = sum(w.times * w.flops for w in work if w.unit == "matrix")
    assert products == pytest.approx(sum(launch.flops for launch in launches), rel=1e-9)
    assert sum(w.times * w.nbytes for w in work) == pytest.approx(sum(map(moved, launches)), rel=0.01)


def test_attention_is_counted_causal() -> None:
    """Guards the half: two products forward, seven backward, each over half of T x T."""
    e = load(NAMES["ANDREA-12M-TRAIN"])
    flops = sum(w.times * w.flops for w in step_work(e.shape, e.train) if w.unit == "attention")
    s = e.shape
    assert flops == s.n_layers * 9 * e.train.batch_size * s.context**2 * s.d_model
