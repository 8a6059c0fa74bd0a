"""What a precision costs in loss: python benchmarks/precision_curves.py 12M --precision bf16 fp8 --steps 2000

Trains the same model from the same weights on the same batches in each precision, and prints the curves side by side: the
mean loss of every hundred steps, in nats a token, then that of blocks that no step has read. The text is the source of
Python's own standard library, a token a byte: it is on every machine, large enough to be read once, and hard to learn by heart.
"""

import argparse
import dataclasses
import sysconfig
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.engine import CudaEngine
from andrea.engine.layout import initial_weights
from andrea.experiment import Experiment, load
from andrea.schedule import lrs

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
HELD_OUT = 256  # blocks
WINDOW = 100  # steps of a line


def blocks(context: int, seed: int) -> NDArray[np.int32]:
    """(n, context + 1) ids of all modules of the standard library, in an order that follows from the seed."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    text = b"".join(path.read_bytes() for path in files if "site-packages" not in path.parts)
    size = len(text) // (context + 1) * (context + 1)
    cut = np.frombuffer(text, np.uint8, size).reshape(-1, context + 1).astype(np.int32)
    return cut[np.random.default_rng(seed).permutation(len(cut))]


def curve(e: Experiment, precision: str, text: NDArray[np.int32], rates: NDArray[np.float64]) -> list[float]:
    """Mean losses of each WINDOW steps, then the mean loss of the held-out blocks."""
    train = dataclasses.replace(e.train, precision=precision)
    engine, rows = CudaEngine(e.shape, train), e.train.batch_size
    weights = initial_weights(e.shape, e.model.init, e.train.seed)
    engine.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    seen, losses, start = text[HELD_OUT:], [], time.perf_counter()
    for step in range(0, len(rates), WINDOW):
        steps = len(rates[step : step + WINDOW])
        ids = np.arange(step * rows, (step + steps) * rows) % len(seen)
        batches = np.ascontiguousarray(seen[ids].reshape(steps, rows, -1))
        losses.append(float(engine.run(batches, rates[step : step + steps])[0].mean()))
    seconds = time.perf_counter() - start
    epochs = len(rates) * rows / len(seen)
    print(f"{precision}: {len(rates)} steps in {seconds:.1f} s, {epochs:.2f} epochs", flush=True)
    return [*losses, float(engine.evaluate(text[:HELD_OUT]).mean()) / e.shape.context]


def show(names: list[str], curves: list[list[float]]) -> None:
    """A line for each window; differences are from the first precision."""
    print("steps      " + "".join(f"{name:>10}" for name in names) + "".join(f"{n + ' / 1st':>14}" for n in names[1:]))
    for i, values in enumerate(zip(*curves, strict=True)):
        label = "held out" if i == len(curves[0]) - 1 else f"..{(i + 1) * WINDOW}"
        differences = "".join(f"{100 * (value / values[0] - 1):>+13.2f}%" for value in values[1:])
        print(f"{label:<11}" + "".join(f"{value:>10.4f}" for value in values) + differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="12M", help="12M, 120M: an experiment's name without ANDREA-")
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp8"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="of the weights and of the order of the text")
    args = parser.parse_args()
    e = load(EXPERIMENTS / f"ANDREA-{args.model}-TRAIN.json")
    plan = {"seed": args.seed, "warmup_steps": args.steps // 10, "horizon": args.steps, "steps": args.steps}
    e = dataclasses.replace(e, train=dataclasses.replace(e.train, **plan))
    text, rates = blocks(e.shape.context, args.seed), lrs(0, args.steps, e.train)
    show(args.precision, [curve(e, precision, text, rates) for precision in args.precision])


if __name__ == "__main__":
    main()
