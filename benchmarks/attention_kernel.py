"""Time of the attention kernels alone, and of torch's on the same card: python benchmarks/attention_kernel.py 12M 120M

Each time is a graph of 20 calls, replayed; the 20th, 50th and 80th percentile of the replays are printed and, with --csv,
appended to a table. Rates count the causal half: 2 B H T^2 D operations forward, 2.5 times as many backward, also for our
backward, which does 3.5. Torch's backward is what forward and backward take beyond forward alone.
"""

import argparse
import datetime
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from results import COLUMNS, append

from andrea.engine.cuda import attention
from andrea.engine.cuda.device import Device
from andrea.engine.cuda.tensor import Tensor
from andrea.experiment import load

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CALLS, REPLAYS = 20, 25
Times = tuple[float, float, float]  # microseconds of a call: percentiles 20, 50, 80
Dims = tuple[int, int, int, int]  # B, T, H, D


def percentiles(replay: Callable[[], None], stream: Any) -> Times:
    """Of single calls, from replays of CALLS of them."""
    replay()
    each = []
    for _ in range(REPLAYS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        replay()
        end.record(stream)
        end.synchronize()
        each.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / CALLS)
    low, middle, high = np.percentile(each, (20, 50, 80))
    return float(low), float(middle), float(high)


def buffers(device: Device, dims: Dims, dtype: str) -> dict[str, Tensor | int]:
    """Random q, k, v and upstream gradient, and room for the results."""
    b, t, h, d = dims
    rng, size = np.random.default_rng(1), 4 if dtype == "float32" else 2

    def tensor(name: str, shape: tuple[int, ...], filled: bool = False) -> Tensor:
        kind = "float32" if name in ("lse", "attn_rows") else dtype
        made = Tensor(device.allocate(int(np.prod(shape)) * (4 if kind == "float32" else size)), shape, kind)
        if filled:
            device.write(made, rng.standard_normal(shape, np.float32))
        return made

    shapes = {"out": (b * t, h, d), "lse": (b, h, t), "dqkv": (b * t, 3, h, d)}
    shapes |= {name: (nbytes // 4,) for name, nbytes in attention.scratch(*dims).items()}
    made: dict[str, Tensor | int] = {name: tensor(name, shape) for name, shape in shapes.items()}
    made |= {"qkv": tensor("qkv", (b * t, 3, h, d), True), "dout": tensor("dout", (b * t, h, d), True)}
    return {**made, "T": t, "H": h}


def ours(device: Device, dims: Dims, precision: str) -> Iterator[tuple[str, Times]]:
    """Forward, each launch of backward, and all of backward."""
    values = buffers(device, dims, DTYPES[precision])
    options, file = attention.defines(dims[3], precision, device.arch), attention.source(precision)

    def timed(launches: tuple[attention.Launch, ...]) -> Times:
        kernels = [(device.kernel(file, launch.kernel, precision, options), launch) for launch in launches]

        def work() -> None:
            for _ in range(CALLS):
                for kernel, launch in kernels:
                    kernel(launch.grid, launch.block, *(values[name] for name in launch.args), shared=launch.shared)

        graph = device.record(work)
        return percentiles(lambda: graph.launch(device.stream), device.stream)

    backward = attention.backward(*dims, precision, device.arch)
    yield "attention forward", timed(attention.forward(*dims, precision, device.arch))
    for launch in backward:
        yield f"attention {launch.kernel.removeprefix('k_attn_')}", timed((launch,))
    yield "attention backward", timed(backward)


def theirs(dims: Dims, precision: str, backend: str) -> Iterator[tuple[str, Times]]:
    """torch's scaled_dot_product_attention with one backend, on q, k, v packed as ours are."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    b, t, h, d = dims
    dtype = getattr(torch, DTYPES[precision])
    qkv = torch.randn(b, t, 3, h, d, device="cuda", dtype=dtype)
    parts = [qkv[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3)]
    dout = torch.randn(b, t, h, d, device="cuda", dtype=dtype).transpose(1, 2)

    def forward() -> None:
        with torch.no_grad():
            scaled_dot_product_attention(*parts, is_causal=True)

    def both() -> None:
        torch.autograd.grad(scaled_dot_product_attention(*parts, is_causal=True), parts, dout)

    def timed(work: Callable[[], None]) -> Times:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(CALLS):
                    work()
        return percentiles(graph.replay, cupy.cuda.Stream.null)

    first, second = timed(forward), timed(both)
    yield f"torch {backend} forward", first
    yield f"torch {backend} backward", tuple(b - a for a, b in zip(first, second, strict=True))  # type: ignore[misc]


def rows(device: Device, dims: Dims, precision: str, torch: bool) -> Iterator[dict[str, object]]:
    """Print each result and yield it as a row of the table."""
    b, t, h, d = dims
    results = list(ours(device, dims, precision))
    if torch and precision != "fp32":
        for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            results += theirs(dims, precision, backend)
    versions = device.versions()
    text = ", ".join(f"{key} {value}" for key, value in versions.items() if key != "gpu")
    for what, (low, middle, high) in results:
        share = 5 if what.endswith("backward") else 2 if what.endswith("forward") else 0  # 0: half of a backward
        rate = f"{share * b * h * t * t * d / middle / 1e6:.0f}" if share else ""
        print(f"{what:<30} {dims} {precision}: {middle:8.1f} us (p20 {low:.1f}, p80 {high:.1f}) {rate:>6} TFLOP/s")
        ms = (f"{value / 1e3:.4f}" for value in (low, middle, high))
        shape = f"B {b}, T {t}, H {h}, D {d}"
        where = (versions["gpu"], text, datetime.date.today().isoformat())
        yield dict(zip(COLUMNS, (what, shape, precision, *ms, rate, "TFLOP/s", *where), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="12M, 120M: an experiment's name without ANDREA-")
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=sorted(DTYPES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    device, table = Device(), []
    torch = importlib.util.find_spec("torch") is not None
    for model in args.models:
        shape = load(EXPERIMENTS / f"ANDREA-{model}-TRAIN.json").shape
        for precision in args.precision:
            dims = (args.batch, shape.context, shape.n_heads, shape.d_head)
            table += rows(device, dims, precision, torch)
    if args.csv:
        append(args.csv, table)


if __name__ == "__main__":
    main()
