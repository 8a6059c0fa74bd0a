"""The learning rate: linear warm-up times a cosine that ends at the horizon."""

import math

import numpy as np
from numpy.typing import NDArray

from andrea.experiment import TrainSpec


def lr(t: int, train: TrainSpec) -> float:
    """The rate of update t, counted from 0: lr(t) = cosine(t) * min(1, (t + 1) / warmup_steps).

    The cosine falls from train.lr to train.lr * min_lr_ratio at t = horizon and stays there. It never sees
    train.steps: a run that is made longer later has had the same rates from its first step.
    """
    turn = math.pi * min(t, train.horizon) / train.horizon
    cosine = train.min_lr_ratio + (1 - train.min_lr_ratio) * 0.5 * (1 + math.cos(turn))
    warmup = min(1.0, (t + 1) / train.warmup_steps) if train.warmup_steps else 1.0
    return train.lr * cosine * warmup


def lrs(start: int, steps: int, train: TrainSpec) -> NDArray[np.float64]:
    """The rates of updates start ... start + steps - 1."""
    return np.array([lr(t, train) for t in range(start, start + steps)], np.float64)
