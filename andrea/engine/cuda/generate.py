"""Sampling on the card: many tokens in one launch, or a graph a token; with a cache, no wait until the context is full.

Rows of text advance together, place by place; a prompt's own tokens are read, the others are drawn on the card from
numbers that the host made beforehand. A full context goes on from its last half, at new positions, as on the CPU.
Everything lives in memory that is free between steps: the cache in that of the gradients, or of the activations.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from andrea.engine.cuda.blocks import BLOCK, WARP
from andrea.engine.cuda.buffers import PROMPT_ROWS
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.matrix import Call
from andrea.engine.cuda.parameters import Parameters
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.weights import padded_vocabulary
from andrea.engine.interface import Choice
from andrea.engine.kernels import LAYERNORM_EPS
from andrea.experiment import Shape
from andrea.philox import generator

ATTENTION_BLOCK = 128
LINEAR_LANES = 2  # of k_token_linear
PICK_BLOCK = 1024


@dataclass(frozen=True)
class Around:
    """What stands around a product: a LayerNorm before it, GELU or a residual sum after it."""

    norm: str = ""
    act: bool = False
    residual: Tensor | None = None


class TokenModel:
    """The model for one new token in each of `rows` rows, by kernels of its own: these products are too thin for tiles."""

    def __init__(
        self, device: Device, shape: Shape, precision: str, parameters: Parameters, buffers: Mapping[str, Tensor]
    ) -> None:
        self._device, self._shape, self._precision = device, shape, precision
        self._parameters, self._buffers = parameters, buffers
        itemsize = buffers["x.0"].itemsize
        self.rows = buffers["cache.0"].shape[0]
        self._pack = 16 // itemsize
        self._shared = PROMPT_ROWS * itemsize  # bytes for each input of a product

    def calls(self) -> list[Call]:
        """One token: embed, blocks, logits, pick, next place."""
        embed = self._kernel("generate", "k_token_embed")
        c, long, p = self._shape.d_model, self._shape.context + 1, self._parameters
        x, wte, wpe = self._part("x.0", c), p.value("wte"), p.value("wpe")
        text, sampling = self._part("text", long), self._buffers["sampling"]
        first: Call = lambda: embed((self.rows,), 128, x, text, sampling, wte, wpe, long, c)  # noqa: E731
        blocks = [call for layer in range(self._shape.n_layers) for call in self._block(layer)]
        logits = self._part("logits", padded_vocabulary(self._shape))
        return [first, *blocks, self._head(logits, x), *self._pick(logits)]

    def _block(self, layer: int) -> list[Call]:
        c, p = self._shape.d_model, self._parameters
        x, middle = self._part("x.0", c), self._part("x.1", c)
        qkv, att, a = self._part("wide", 3 * c), self._part("att.0", c), self._part("a", 4 * c)
        matrices = p.qkv(layer)
        packed = Weight(matrices.tensor, c, *matrices.strides(c))
        return [
            self._linear(qkv, x, packed, Around(norm=f"{layer}.LN1")),
            self._attend(layer, att, qkv),
            self._linear(middle, att, Weight.plain(p.matrix(f"{layer}.W_O")), Around(residual=x)),
            self._linear(a, middle, Weight.plain(p.matrix(f"{layer}.W_1")), Around(norm=f"{layer}.LN2", act=True)),
            self._linear(x, a, Weight.plain(p.matrix(f"{layer}.W_2")), Around(residual=middle)),
        ]

    def _linear(self, y: Tensor, x: Tensor, w: "Weight", around: Around) -> Call:
        kernel, p = self._kernel("token_linear", "k_token_linear"), self._parameters
        norm = around.norm or "LN_f"  # a name for an argument that is then not read
        vectors = (p.value(norm + ".gamma"), p.value(norm + ".beta"))
        (r, i), o = x.shape, y.shape[1]
        flags = (int(bool(around.norm)), int(around.act), int(around.residual is not None))
        sizes = (r, i, o, w.width, w.matrix, w.row, *flags, LAYERNORM_EPS)
        grid, old = (-(-o // (LINEAR_LANES * self._pack)),), y if around.residual is None else around.residual
        return lambda: kernel(grid, BLOCK, y, x, old, *vectors, w.tensor, *sizes, shared=self._shared * i)

    def _head(self, logits: Tensor, x: Tensor) -> Call:
        kernel, p, s = self._kernel("token_linear", "k_token_head"), self._parameters, self._shape
        vectors = (p.value("LN_f.gamma"), p.value("LN_f.beta"))
        sizes = (self.rows, s.d_model, s.vocab_size, logits.shape[1], LAYERNORM_EPS)
        grid, head = (-(-s.vocab_size // (BLOCK // WARP)),), p.head()
        return lambda: kernel(grid, BLOCK, logits, x, *vectors, head, *sizes, shared=self._shared * s.d_model)

    def _attend(self, layer: int, att: Tensor, qkv: Tensor) -> Call:
        s, kernel = self._shape, self._kernel("generate", "k_token_attn")
        cache = self._buffers[f"cache.{layer}"]
        shared = 4 * (s.context + ATTENTION_BLOCK)
        sizes = (s.context, s.n_heads, s.d_head)
        sampling, grid = self._buffers["sampling"], (s.n_heads, self.rows)
        return lambda: kernel(grid, ATTENTION_BLOCK, att, cache, qkv, sampling, *sizes, shared=shared)

    def _pick(self, logits: Tensor) -> list[Call]:
        pick, advance = self._kernel("generate", "k_token_pick"), self._kernel("generate", "k_token_next")
        s, long, sampling = self._shape, self._shape.context + 1, self._buffers["sampling"]
        text, uniform = self._part("text", long), self._part("uniform", long)
        sizes = (s.vocab_size, padded_vocabulary(s), long)
        return [
            lambda: pick((self.rows,), PICK_BLOCK, text, logits, uniform, sampling, *sizes),
            lambda: advance((1,), WARP, sampling),
        ]

    def _part(self, name: str, width: int) -> Tensor:
        """The first rows of a buffer."""
        return self._buffers[name].part(0, self.rows, width)

    def _kernel(self, file: str, name: str) -> Kernel:
        return self._device.kernel(f"{file}.cu", name, self._precision)


@dataclass(frozen=True)
class Weight:
    """A matrix where k_token_linear reads it: see kernels/token_linear.cu."""

    tensor: Tensor
    width: int
    matrix: int
    row: int

    @classmethod
    def plain(cls, w: Tensor) -> "Weight":
        """(I, O), as it is."""
        return cls(w, w.shape[1], 0, w.shape[1])


class Advance(Protocol):
    """Goes on from `place` by `steps` tokens in the first `rows` rows, on the stream beside the device's if asked to."""

    def __call__(self, place: int, steps: int, rows: int, beside: bool = False) -> None: ...


def token_graph(device: Device, calls: list[Call]) -> Advance:
    """The calls of one token as a graph, replayed: its kernels know the place by themselves, and take all rows."""
    for call in calls:  # loads the kernels' code, which must not happen while capturing
        call()
    device.wait()
    graph = device.record(lambda: [call() for call in calls])

    def advance(place: int, steps: int, rows: int, beside: bool = False) -> None:  # noqa: ARG001 what Advance asks for
        for _ in range(steps):
            graph.launch(device.stream)

    return advance


class Sampler:
    """Texts from prompts, `rows` at a time. `apart`: it shares no memory with an evaluation, and can run beside one."""

    def __init__(
        self,
        device: Device,
        shape: Shape,
        rows: int,
        advance: Advance,
        buffers: Mapping[str, Tensor],
        *,
        apart: bool,
    ) -> None:
        self._device, self._shape, self._rows, self._advance, self._buffers = device, shape, rows, advance, buffers
        self._apart, self._place, self._active = apart, 0, 0

    def begin(
        self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
    ) -> Callable[[], list[list[int]]]:
        """generate(), begun beside other work if it can be; the result's call ends it."""
        longest = max(map(len, prompts), default=0) + tokens
        if not (self._apart and 0 < len(prompts) <= self._rows and longest <= self._shape.context + 1):
            return lambda: self.generate(prompts, tokens, choice, seed, step)
        numbers = [generator(seed, "sample", step, i).random(tokens) for i in range(len(prompts))]
        self._configure(choice)
        self._begin(prompts, prompts, prompts, numbers)
        self._advance(0, longest - 1, len(prompts), beside=True)

        def finish() -> list[list[int]]:
            self._device.wait_beside()
            made = self._device.read(self._buffers["text"])
            return [made[r, len(p) : len(p) + tokens].tolist() for r, p in enumerate(prompts)]

        return finish

    def generate(self, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int) -> list[list[int]]:
        """`tokens` new tokens for each prompt; each has its own random numbers, so the others do not matter to it."""
        numbers = [generator(seed, "sample", step, i).random(tokens) for i in range(len(prompts))]
        texts: list[list[int]] = []
        for start in range(0, len(prompts), self._rows):
            some = slice(start, start + self._rows)
            texts += self._group(prompts[some], numbers[some], tokens, choice)
        return texts

    def stream(self, prompt: list[int], tokens: int, choice: Choice, seed: int, step: int) -> Iterator[int]:
        """What generate() gives after a first prompt, token by token; the card is waited for after each."""
        context, numbers = self._shape.context, [generator(seed, "sample", step, 0).random(tokens)]
        text, end = list(prompt), len(prompt) + tokens
        self._configure(choice)
        while len(text) < end:
            window = text[-(context // 2) :] if len(text) > context else text
            self._begin([window], [prompt], [text], numbers)
            self._launch(len(window) - 1)
            for place in range(len(window), min(context + 1, len(window) + end - len(text))):
                self._launch(1)
                text.append(int(self._device.read(self._buffers["text"].part(place, 1))[0]))
                yield text[-1]

    def _group(
        self, prompts: list[list[int]], numbers: list[NDArray[np.float64]], tokens: int, choice: Choice
    ) -> list[list[int]]:
        context, texts = self._shape.context, [list(p) for p in prompts]
        self._configure(choice)
        while any(len(text) < len(p) + tokens for text, p in zip(texts, prompts, strict=True)):
            full = max(map(len, texts)) > context
            # only when the window is full do all rows have the same length; then its last half is read again
            windows = [text[-(context // 2) :] if full else text for text in texts]
            goals = [len(p) + tokens - (len(t) - len(w)) for p, t, w in zip(prompts, texts, windows, strict=True)]
            made = self._window(windows, goals, prompts, texts, numbers)
            for text, window, new in zip(texts, windows, made, strict=True):
                text += new[len(window) :]
        return [t[len(p) : len(p) + tokens] for t, p in zip(texts, prompts, strict=True)]

    def _window(
        self,
        windows: list[list[int]],
        goals: list[int],
        prompts: list[list[int]],
        texts: list[list[int]],
        numbers: list[NDArray[np.float64]],
    ) -> list[list[int]]:
        """Run from place 0 until every row has reached its goal, or the window is full."""
        steps = min(max(goals), self._shape.context + 1) - 1
        self._begin(windows, prompts, texts, numbers)
        self._launch(steps)
        made = self._device.read(self._buffers["text"])
        return [made[r, : max(len(w), min(goals[r], steps + 1))].tolist() for r, w in enumerate(windows)]

    def _begin(
        self,
        windows: list[list[int]],
        prompts: list[list[int]],
        texts: list[list[int]],
        numbers: list[NDArray[np.float64]],
    ) -> None:
        """Windows and their random numbers onto the card, and place 0."""
        long = self._shape.context + 1
        text = np.full((PROMPT_ROWS, long), -1, np.int32)
        text[:, 0] = 0  # rows without a prompt read something
        uniform = np.zeros((PROMPT_ROWS, long), np.float32)
        for r, window in enumerate(windows):
            text[r, : len(window)] = window
            drawn = numbers[r][len(texts[r]) - len(prompts[r]) :][: long - len(window)]
            # a double just below 1 would become 1 in float32
            uniform[r, len(window) : len(window) + len(drawn)] = np.minimum(drawn, np.nextafter(np.float32(1), 0))
        self._device.write(self._buffers["text"], text)
        self._device.write(self._buffers["uniform"], uniform)
        self._device.write(self._buffers["sampling"].part(0, 1), np.zeros(1, np.int32))
        self._place, self._active = 0, len(windows)

    def _launch(self, steps: int) -> None:
        self._advance(self._place, steps, self._active)
        self._place += steps

    def _configure(self, choice: Choice) -> None:
        """struct Sampling of kernels/generate.cu."""
        temperature, top_p = np.array([choice.temperature, choice.top_p], np.float32).view(np.int32)
        words = np.array([0, temperature, choice.top_k, top_p], np.int32)
        self._device.write(self._buffers["sampling"], words)
