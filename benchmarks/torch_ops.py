"""PyTorch's kernels for the work of single ops: python benchmarks/torch_ops.py --batch 8 --precision bf16

Products by torch.mm, attention by cuDNN (memory-efficient for float32), LayerNorm, GELU, cross-entropy (compiled) and fused
AdamW on one flat vector. Timed as ours are: 20 calls or more in a graph, as many sets of buffers in turns as there are
layers. A backward is what forward and backward take beyond forward. Unlike ours, weight gradients are assigned in the
type of the activations, not added in float32. Needs torch for CUDA and nothing of this project; kernel_times.py --torch runs it.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch_step
from torch_step import LOW, TILE, fn, torch

CALLS, REPLAYS = 20, 25
Work = Callable[[], object]
Makers = Iterator[tuple[str, Callable[[], Work]]]  # (op, maker of the work on a new set of buffers)


def percentiles(maker: Callable[[], Work], sets: int) -> list[float]:
    """Microseconds of one call: percentiles 20, 50, 80 of the replays."""
    works = [maker() for _ in range(sets)]
    calls = works * -(-CALLS // sets)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in works * 2:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    each = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        each.append(start.elapsed_time(end) * 1e3 / len(calls))
    cuts = statistics.quantiles(each, n=10)
    return [cuts[1], cuts[4], cuts[7]]


def products(o: Any, new: Callable[..., Any]) -> Makers:
    """The matrix products and their gradients; weights are (O, I), as nn.Linear has them."""
    n, c, padded = o.batch * o.context, o.width, -(-o.vocabulary // TILE) * TILE
    sizes = {"qkv": (c, 3 * c), "out": (c, c), "up": (c, 4 * c), "down": (4 * c, c), "head": (c, padded)}

    def product(*shapes: tuple[int, int], first: bool = False, second: bool = False) -> Callable[[], Work]:
        def make() -> Work:
            a, b = (new(*shape) for shape in shapes)
            a, b = a.t() if first else a, b.t() if second else b
            out = new(a.shape[0], b.shape[1])
            return lambda: torch.mm(a, b, out=out)

        return make

    for name, (i, out) in sizes.items():
        yield f"{name} forward", product((n, i), (out, i), second=True)
        yield f"{name} input gradient", product((n, out), (out, i))
        yield f"{name} weight gradient", product((n, out), (n, i), first=True)


def pair(
    function: Callable[..., Any], inputs: Callable[[], list[Any]]
) -> tuple[Callable[[], Work], Callable[[], Work]]:
    """Makers of forward alone, and of forward with backward."""

    def forward() -> Work:
        given = inputs()

        def call() -> None:
            with torch.no_grad():
                function(*given)

        return call

    def both() -> Work:
        given = [tensor.requires_grad_() for tensor in inputs()]
        up = torch.ones_like(function(*given))
        return lambda: torch.autograd.grad(function(*given), given, up)

    return forward, both


def layers(o: Any, new: Callable[..., Any]) -> Iterator[tuple[str, tuple[Callable[[], Work], Callable[[], Work]]]]:
    """What has a forward and a backward."""
    n, c, d = o.batch * o.context, o.width, o.width // o.heads

    def heads() -> list[Any]:
        packed = new(o.batch, o.context, 3, o.heads, d)
        return [packed[:, :, i].transpose(1, 2).detach() for i in range(3)]

    yield "attention", pair(lambda q, k, v: fn.scaled_dot_product_attention(q, k, v, is_causal=True), heads)
    yield (
        "layernorm",
        pair(lambda x, gamma, beta: fn.layer_norm(x, (c,), gamma, beta), lambda: [new(n, c), new(c), new(c)]),
    )
    yield "gelu", pair(lambda x: fn.gelu(x, approximate="tanh"), lambda: [new(n, 4 * c)])


def whole(o: Any, new: Callable[..., Any]) -> Makers:
    """What a step does once."""
    n, c = o.batch * o.context, o.width
    parameters = (o.vocabulary + o.context + 2) * c + o.layers * (12 * c * c + 4 * c)
    targets = torch.randint(0, o.vocabulary, (n,), device="cuda")
    entropy = torch.compile(lambda logits: fn.cross_entropy(logits.float(), targets), dynamic=False)
    yield "loss", pair(entropy, lambda: [new(n, -(-o.vocabulary // TILE) * TILE)])[1]
    flat = torch.nn.Parameter(torch.randn(parameters, device="cuda"))
    flat.grad = torch.randn(parameters, device="cuda")
    rate = torch.tensor(1e-4, device="cuda")
    yield "adamw", lambda: torch.optim.AdamW([flat], rate, fused=True, capturable=True).step
    yield "grad norm", lambda: lambda: torch.linalg.vector_norm(flat.grad)
    yield "zero", lambda: flat.grad.zero_


def main() -> None:
    o = torch_step.options()
    about = torch_step.prepared(o)

    def new(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=LOW.get(o.precision, torch.float32))

    us: dict[str, list[float]] = {}
    with torch_step.attention(o):
        for name, maker in products(o, new):
            us[name] = percentiles(maker, 1 if name.startswith("head") else o.layers)
        for name, (forward, both) in layers(o, new):
            us[f"{name} forward"], all_of_it = percentiles(forward, o.layers), percentiles(both, o.layers)
            us[f"{name} backward"] = [b - f for b, f in zip(all_of_it, us[f"{name} forward"], strict=True)]
        for name, maker in whole(o, new):
            us[name] = percentiles(maker, 1)
    print(json.dumps({"us": us, "versions": about}))


if __name__ == "__main__":
    main()
