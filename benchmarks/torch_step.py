"""A training step of the same GPT in PyTorch, as fast as PyTorch does it: python benchmarks/torch_step.py --batch 8

The model is compiled, the whole step (clipping and AdamW too) is one CUDA graph, attention is cuDNN's, the head is padded
to whole tiles of 128. In bf16 and fp16 the weights stay float32 under autocast, and so does AdamW's state. cuDNN takes 16
bits only: for fp32 and tf32 it is the memory-efficient attention. None of this repeats bit for bit. Needs torch for CUDA
and nothing of this project; train_step.py --torch runs it. The last line printed is JSON.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from typing import Any

try:
    import torch
    from torch import nn
    from torch.nn import functional as fn
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as cause:
    raise SystemExit(f"PyTorch for CUDA must be installed in this interpreter ({cause}); see pytorch.org") from cause

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
TILE, POOL, WARM = 128, 8, 6
Tensor = torch.Tensor


class Block(nn.Module):
    """Pre-norm attention and MLP, without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(fn.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Token ids to the mean cross-entropy of their successors; the residual stream has the activations' type."""

    def __init__(self, o: argparse.Namespace) -> None:
        super().__init__()
        self.stream = LOW.get(o.precision, torch.float32)
        self.wte = nn.Embedding(-(-o.vocabulary // TILE) * TILE, o.width)
        self.wpe = nn.Embedding(o.context, o.width)
        self.blocks = nn.Sequential(*(Block(o.width, o.heads) for _ in range(o.layers)))
        self.norm = nn.LayerNorm(o.width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = (self.wte(tokens) + self.wpe.weight).to(self.stream)
        logits = fn.linear(self.norm(self.blocks(x)), self.wte.weight)
        return fn.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Step:
    """Model, optimizer and batch on one device; run() is a whole update, without a word to the host."""

    def __init__(self, o: argparse.Namespace, device: str) -> None:
        self.device, self.low = device, LOW.get(o.precision)
        torch.manual_seed(0)
        self.model = Gpt(o).to(device)
        self.compiled: Callable[..., Tensor] = torch.compile(self.model, dynamic=False, fullgraph=True)
        self.parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in self.parameters if (p.dim() == 2) == decays], "weight_decay": 0.1 * decays}
            for decays in (True, False)
        ]
        rate = torch.tensor(3e-4, device=device)
        self.optimizer = torch.optim.AdamW(groups, rate, (0.9, 0.999), fused=True, capturable=device == "cuda")
        self.scaler = torch.amp.GradScaler(device, enabled=o.precision == "fp16")
        shares = 1 / (torch.arange(o.vocabulary, dtype=torch.float64) + 2.7)  # as words: equal ids meet in backward
        pool = torch.multinomial(shares, POOL * o.batch * (o.context + 1), replacement=True)
        pool = pool.view(POOL, o.batch, o.context + 1)
        self.pool = torch.stack([pool[:, :, :-1], pool[:, :, 1:]], dim=1)  # (POOL, 2, B, T): tokens and targets
        if device == "cuda":
            self.pool = self.pool.pin_memory()
        self.batch, self.loss = self.pool[0].to(device), torch.zeros((), device=device)

    def send(self, i: int) -> None:
        self.batch.copy_(self.pool[i % POOL], non_blocking=True)

    def run(self) -> None:
        with torch.autocast(self.device, dtype=self.low, enabled=self.low is not None):
            loss = self.compiled(self.batch[0], self.batch[1])
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.scaler.step(self.optimizer)  # a fused optimizer reads on the card whether to skip: nothing waits
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())


def captured(step: Step) -> Any:
    """The step as one graph; compiled and run on a side stream before, as capturing asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(WARM):
            step.send(i)
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph


def timed(step: Step, graph: Any, steps: int) -> list[float]:
    """Milliseconds of each step, its batch's copy included, by events between replays."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    for i in range(-WARM, steps):
        if i >= 0:
            marks[i].record()
        step.send(i)
        graph.replay()
    marks[steps].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sizes = {"layers": 6, "width": 384, "heads": 12, "vocabulary": 2305, "context": 1024, "batch": 8, "steps": 100}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp16", "tf32", "fp32"])
    return parser.parse_args()


def prepared(o: argparse.Namespace) -> dict[str, object]:
    """Card and precision made ready; what is measured, for the table of results. SystemExit without a card."""
    if not torch.cuda.is_available():
        raise SystemExit(f"PyTorch must see a CUDA card; this is torch {torch.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.precision != "fp32"
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def attention(o: argparse.Namespace) -> Any:
    """The context of the fastest attention that takes the precision."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION if o.precision in LOW else SDPBackend.EFFICIENT_ATTENTION)


def main() -> None:
    o = options()
    about = prepared(o)
    step = Step(o, "cuda")
    with attention(o):
        graph = captured(step)
        before = float(step.loss)
        each = timed(step, graph, o.steps)
    after = float(step.loss)
    if not after < before:
        raise SystemExit(f"the loss must fall; it went from {before} to {after}")
    cuts = statistics.quantiles(each, n=10)
    gib = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps({"ms": [cuts[1], cuts[4], cuts[7]], "gib": gib, "loss": after, "versions": about}))


if __name__ == "__main__":
    main()
