"""Whole training steps of the CPU engine beside PyTorch eager, same model, same batch, same number of threads.

    python benchmarks/cpu_step.py --torch-python /path/to/other/venv/bin/python

The two take turns in processes of their own, for a machine's speed drifts by more than what is measured; only the
ratio within a pair counts. On a machine that others use, --cpu-time compares the work of one thread. A step is
forward, backward, clipping, AdamW and clearing. PyTorch is not a dependency of the project: without --torch-python
only our side runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from rows import COLUMNS, append

SHAPES = {  # vocabulary, width, heads, layers, context, batch rows
    "tiny": (513, 128, 4, 2, 256, 4),
    "12M": (2305, 384, 12, 6, 1024, 2),
}
SPEED_CHANGERS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # a measurement wants the library's own choice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="tiny,12M", help="comma-separated: " + ", ".join(SHAPES))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of measured steps a process")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--torch-python", help="an interpreter that has torch")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of one thread, for a busy machine")
    parser.add_argument("--csv", type=Path, help="append the medians to this table of results")
    parser.add_argument("--side", choices=["ours", "torch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cpu_time:
        options.threads = 1
    if options.side:
        measure(options)
        return
    for shape in options.shapes.split(","):
        compare(shape, options)


def compare(shape: str, options: argparse.Namespace) -> None:
    """Alternating pairs of processes for one shape, and their medians."""
    ours, torch = [], []
    for _ in range(options.pairs):
        ours.append(side("ours", sys.executable, shape, options))
        if options.torch_python:
            torch.append(side("torch", options.torch_python, shape, options))
    for name, runs in (("ours", ours), ("torch eager", torch)):
        if runs:
            best = sorted(runs, key=lambda r: r["ms_p50"])[len(runs) // 2]
            rates = " ".join(f"{r['tokens_per_s']:,.0f}" for r in runs)
            print(f"{shape:5} {name:12} {best['ms_p50']:8.2f} ms  {best['tokens_per_s']:8,.0f} tok/s  (runs: {rates})")
            if options.csv:
                append(options.csv, [row(name, shape, best | {"cpu": ours[0]["cpu"]}, options.threads)])
    if torch:
        ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, torch, strict=True)]
        print(
            f"{shape:5} ratio        {statistics.median(ratios):.2f}  (pairs: {' '.join(f'{r:.2f}' for r in ratios)})"
        )


def side(name: str, python: str, shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """One process of one side."""
    root = Path(__file__).resolve().parent.parent
    environment = {k: v for k, v in os.environ.items() if k not in SPEED_CHANGERS}
    threads = str(options.threads)
    environment |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    command = [python, __file__, "--side", name, "--shapes", shape, "--threads", threads]
    command += ["--seconds", str(options.seconds), *(["--cpu-time"] if options.cpu_time else [])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(options: argparse.Namespace) -> None:
    """In the process of one side: time single steps and print the result as JSON."""
    *_, context, rows = SHAPES[options.shapes]
    make = ours_step if options.side == "ours" else torch_step
    step, about = make(options.shapes, options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    for _ in range(3):
        step()
    times: list[float] = []
    while sum(times) < options.seconds or len(times) < 5:
        start = clock()
        step()
        times.append(clock() - start)
    p20, p50, p80 = (1e3 * sorted(times)[int(len(times) * share)] for share in (0.2, 0.5, 0.8))
    rate = rows * context / p50 * 1e3
    print(json.dumps({"ms_p20": p20, "ms_p50": p50, "ms_p80": p80, "tokens_per_s": rate} | about))


def ours_step(name: str, threads: int) -> tuple[Callable[[], object], dict[str, str]]:
    """A step of the CPU engine."""
    import numpy as np

    from andrea.engine import versions
    from andrea.engine.cpu import CpuEngine
    from andrea.engine.layout import InitSpec, Shape, initial_weights
    from andrea.engine.loops import KERNELS
    from andrea.experiment import TrainSpec

    vocabulary, width, heads, layers, context, rows = SHAPES[name]
    shape = Shape(vocabulary, width, heads, layers, context, tied_head=True)
    train = TrainSpec("cpu", "fp32", 1, rows, 1, False, 1, 1, 1e-3, 0.1, 0, 0.9, 0.999, 1e-8, 0.1, 1.0, 2)
    engine = CpuEngine(shape, train, threads, KERNELS)
    weights = initial_weights(shape, InitSpec("normal", 0.02, 0.02, 0.02, 0.02, True), 1)
    engine.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    batch = np.random.default_rng(0).integers(0, vocabulary, (1, rows, context + 1), dtype=np.int32)
    found = versions()
    text = f"numpy {found['numpy']} numba {found['numba']} {found['blas']} {found['blas_core']}"
    return lambda: engine.run(batch, np.array([1e-3])), {"versions": text, "cpu": found["cpu"]}


def torch_step(name: str, threads: int) -> tuple[Callable[[], object], dict[str, str]]:
    """The same step in PyTorch, eager, float32, with its fused AdamW and its own attention."""
    import torch
    from torch import nn
    from torch.nn import functional as fn

    vocabulary, width, heads, layers, context, rows = SHAPES[name]
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm1(x)).view(rows, context, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            x = x + self.out(mixed.reshape(rows, context, width))
            return x + self.down(fn.gelu(self.up(self.norm2(x)), approximate="tanh"))

    tokens, places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
    body = nn.Sequential(*[Block() for _ in range(layers)], nn.LayerNorm(width))
    parameters = [*tokens.parameters(), *places.parameters(), *body.parameters()]
    for p in parameters:
        if p.dim() == 2:
            nn.init.normal_(p, 0.0, 0.02)
    groups = [{"params": [p for p in parameters if p.dim() == d], "weight_decay": w} for d, w in ((2, 0.1), (1, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, fused=True)
    batch = torch.randint(0, vocabulary, (rows, context + 1))
    x, y = batch[:, :-1].contiguous(), batch[:, 1:].reshape(-1)

    def step() -> None:
        hidden = body(tokens(x) + places.weight[:context])
        fn.cross_entropy((hidden @ tokens.weight.T).view(-1, vocabulary), y).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, {"versions": f"torch {torch.__version__}"}


def row(what: str, shape: str, run: dict[str, Any], threads: int) -> dict[str, object]:
    """One row of the table of results."""
    *_, context, rows = SHAPES[shape]
    times = [f"{run[key]:.2f}" for key in ("ms_p20", "ms_p50", "ms_p80")]
    device, rate = f"{run['cpu']}, {threads} threads", f"{run['tokens_per_s']:.0f}"
    values = [
        f"train step, {what}",
        f"{shape}, {rows}x{context}",
        "fp32",
        *times,
        rate,
        "tok/s",
        device,
        run["versions"],
    ]
    return dict(zip(COLUMNS, [*values, date.today().isoformat()], strict=True))


if __name__ == "__main__":
    main()
