"""Compile or load every loop before training, on a model that is small enough to cost nothing else."""

import dataclasses
import sys
from functools import cache

import numpy as np

from andrea.engine.cpu import CpuEngine
from andrea.engine.interface import Choice
from andrea.engine.layout import count
from andrea.engine.loops import KERNELS
from andrea.engine.loops.cache import drop_old, folder
from andrea.experiment import Shape, TrainSpec

SMALL = Shape(vocab_size=5, d_model=4, n_heads=2, n_layers=1, context=3, tied_head=True)


def announce() -> None:
    """Say that the first call will take longer, where it will."""
    if not any(folder().rglob("*.nbc")):
        print("compiling the CPU loops, once on this machine: about 15 s", file=sys.stderr, flush=True)


@cache
def warm_up(train: TrainSpec) -> None:
    """Run each op once; says so when they have to be compiled, which takes a while."""
    announce()
    # clip is so low that the gradient is scaled, too
    spec = dataclasses.replace(train, batch_size=1, microbatches=1, partitions=1, clip=1e-9)
    engine = CpuEngine(SMALL, spec, 1, KERNELS)
    start = np.linspace(-1, 1, count(SMALL), dtype=np.float32)
    engine.load(start, start, start, 0)
    engine.run(np.zeros((1, 1, 4), np.int32), np.zeros(1))
    engine.generate([[0]], 2, Choice(0.0, 0), seed=0, step=0)
    drop_old()
