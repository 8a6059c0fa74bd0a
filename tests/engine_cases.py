"""Small models, settings and batches that the engine's tests share."""

from typing import Any

import numpy as np

from andrea.engine.cpu import CpuEngine
from andrea.engine.kernels import Kernels
from andrea.engine.layout import count, initial_weights
from andrea.engine.loops import KERNELS as LOOPS
from andrea.experiment import InitSpec, Shape, TrainSpec

SHAPE = Shape(vocab_size=19, d_model=12, n_heads=3, n_layers=2, context=7, tied_head=True)
UNTIED = Shape(vocab_size=19, d_model=12, n_heads=3, n_layers=2, context=7, tied_head=False)
INIT = InitSpec("normal", 0.3, 0.2, 0.25, 0.3, residual_scaling=True)


def settings(**changes: Any) -> TrainSpec:
    """Training settings in which every term matters: clipping, decay, warm-up."""
    values = {
        "engine": "cpu",
        "precision": "fp32",
        "seed": 3,
        "batch_size": 4,
        "microbatches": 1,
        "recompute": False,
        "steps": 20,
        "horizon": 20,
        "lr": 1e-2,
        "min_lr_ratio": 0.1,
        "warmup_steps": 2,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip": 1.0,
        "partitions": 2,
    }
    return TrainSpec(**(values | changes))


def engine(
    shape: Shape = SHAPE, threads: int = 2, kernels: Kernels = LOOPS, dtype: str = "float32", **changes: Any
) -> CpuEngine:
    """An engine at step 0; gamma and beta are not 1 and 0."""
    made = CpuEngine(shape, settings(**changes), threads, kernels, dtype)
    made.load(start_weights(shape), np.zeros(count(shape)), np.zeros(count(shape)), 0)
    return made


def start_weights(shape: Shape) -> Any:
    """Initial weights with noise on the gains and biases as well."""
    noise = np.random.default_rng(4).standard_normal(count(shape)).astype(np.float32)
    return initial_weights(shape, INIT, 1) + np.float32(0.1) * noise


def batches(steps: int, rows: int = 4, shape: Shape = SHAPE, seed: int = 8) -> Any:
    """(S, B, T+1) int32."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, shape.vocab_size, (steps, rows, shape.context + 1), dtype=np.int32)


def rates(steps: int) -> Any:
    return np.linspace(1e-2, 5e-3, steps)
