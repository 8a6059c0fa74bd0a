"""Sampling on the card: one graph a token, with a key and value cache, no wait until the context is full.

Rows of text advance together, place by place; a prompt's own tokens are read, the others are drawn on the card from
numbers that the host made beforehand. A full context goes on from its last half, at new positions, as on the CPU.
Everything lives in the memory of the training activations, which are free between steps.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from andrea.engine.buffers_cuda import PROMPT_ROWS
from andrea.engine.cuda.device import Device, Kernel
from andrea.engine.cuda.matrix import Call, Matrix
from andrea.engine.cuda.model import LN_ROWS, WARP, Parameters, norm_defines
from andrea.engine.cuda.tensor import Tensor
from andrea.engine.cuda.weights import padded_vocabulary
from andrea.engine.kernels import LAYERNORM_EPS
from andrea.experiment import Shape
from andrea.philox import generator

BLOCK = 256
ATTENTION_BLOCK = 128


class TokenModel:
    """The model for one new token in each of `rows` rows."""

    def __init__(
        self,
        device: Device,
        shape: Shape,
        precision: str,
        matrix: Matrix,
        parameters: Parameters,
        buffers: Mapping[str, Tensor],
    ) -> None:
        self._device, self._shape, self._precision = device, shape, precision
        self._matrix, self._parameters, self._buffers = matrix, parameters, buffers
        cache = buffers["qkv.0"].size // (2 * shape.context * shape.d_model)
        self.rows = max(1, min(PROMPT_ROWS, cache))
        self._pack = 16 // buffers["x.0"].itemsize

    def calls(self) -> list[Call]:
        """One token: embed, blocks, logits, pick, next place."""
        embed = self._kernel("generate", "k_token_embed")
        c, long, p = self._shape.d_model, self._shape.context + 1, self._parameters
        x, wte, wpe = self._part("x.0", c), p.value("wte"), p.value("wpe")
        text, sampling = self._rows_of("text", long), self._buffers["sampling"]
        first = [lambda: embed((self.rows,), 128, x, text, sampling, wte, wpe, long, c)]
        blocks = [call for layer in range(self._shape.n_layers) for call in self._block(layer)]
        last = self._layernorm("LN_f", x, self._part("y.0", c))
        logits = self._part("logits", padded_vocabulary(self._shape))
        return [*first, *blocks, *last, *self._matrix.head(logits, self._part("y.0", c), p.head()), *self._pick(logits)]

    def _block(self, layer: int) -> list[Call]:
        c, m, p = self._shape.d_model, self._matrix, self._parameters
        x, middle, y = self._part("x.0", c), self._part("x.1", c), self._part("y.0", c)
        qkv, att = self._part("wide", 3 * c), self._part("att.0", c)
        h, a = self._part("h.0", 4 * c), self._part("a", 4 * c)
        gelu, size = self._kernel("gelu", "k_gelu_fwd"), h.size
        grid = (-(-size // (BLOCK * self._pack)),)
        return [
            *self._layernorm(f"{layer}.LN1", x, y),
            *m.qkv(qkv, y, p.qkv(layer)),
            *self._attend(layer, att, qkv),
            *m.forward("attn_out", middle, att, p.matrix(f"{layer}.W_O"), x),
            *self._layernorm(f"{layer}.LN2", middle, y),
            *m.forward("mlp", h, y, p.matrix(f"{layer}.W_1")),
            lambda: gelu(grid, BLOCK, a.reshape(size), h.reshape(size), size),
            *m.forward("mlp", x, a, p.matrix(f"{layer}.W_2"), middle),
        ]

    def _layernorm(self, name: str, x: Tensor, y: Tensor) -> list[Call]:
        p, r, c = self._parameters, self.rows, self._shape.d_model
        defines = norm_defines(c, self._pack)
        kernel = self._device.kernel("layernorm.cu", "k_layernorm_fwd", self._precision, defines)
        mean, rstd = self._buffers["mean.0"].part(0, r), self._buffers["rstd.0"].part(0, r)
        gamma, beta = p.value(name + ".gamma"), p.value(name + ".beta")
        grid = (-(-r // LN_ROWS),)
        return [lambda: kernel(grid, WARP * LN_ROWS, y, mean, rstd, x, gamma, beta, r, c, LAYERNORM_EPS)]

    def _attend(self, layer: int, att: Tensor, qkv: Tensor) -> list[Call]:
        s, kernel = self._shape, self._kernel("generate", "k_token_attn")
        cache = self._buffers[f"qkv.{layer}"]  # free between steps
        shared = 4 * (s.context + ATTENTION_BLOCK)
        sizes = (s.context, s.n_heads, s.d_head)
        sampling, grid = self._buffers["sampling"], (s.n_heads, self.rows)
        return [lambda: kernel(grid, ATTENTION_BLOCK, att, cache, qkv, sampling, *sizes, shared=shared)]

    def _pick(self, logits: Tensor) -> list[Call]:
        pick, advance = self._kernel("generate", "k_token_pick"), self._kernel("generate", "k_token_next")
        s, long, sampling = self._shape, self._shape.context + 1, self._buffers["sampling"]
        text, uniform = self._rows_of("text", long), self._rows_of("uniform", long)
        sizes = (s.vocab_size, padded_vocabulary(s), long)
        return [
            lambda: pick((self.rows,), BLOCK, text, logits, uniform, sampling, *sizes),
            lambda: advance((1,), WARP, sampling),
        ]

    def _part(self, name: str, width: int) -> Tensor:
        return self._buffers[name].part(0, self.rows, width)

    def _rows_of(self, name: str, width: int) -> Tensor:
        return self._buffers[name].part(0, self.rows, width)

    def _kernel(self, file: str, name: str) -> Kernel:
        return self._device.kernel(f"{file}.cu", name, self._precision)


class Sampler:
    """Texts from prompts, `rows` at a time, by a captured graph of one token."""

    def __init__(self, device: Device, shape: Shape, rows: int, graph: object, buffers: Mapping[str, Tensor]) -> None:
        self._device, self._shape, self._rows, self._graph, self._buffers = device, shape, rows, graph, buffers

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, top_k: int, seed: int, step: int
    ) -> list[list[int]]:
        """`tokens` new tokens for each prompt; each has its own random numbers, so the others do not matter to it."""
        numbers = [generator(seed, "sample", step, i).random(tokens) for i in range(len(prompts))]
        texts: list[list[int]] = []
        for start in range(0, len(prompts), self._rows):
            some = slice(start, start + self._rows)
            texts += self._group(prompts[some], numbers[some], tokens, temperature, top_k)
        return texts

    def _group(
        self, prompts: list[list[int]], numbers: list[NDArray[np.float64]], tokens: int, temperature: float, top_k: int
    ) -> list[list[int]]:
        context, texts = self._shape.context, [list(p) for p in prompts]
        self._configure(temperature, top_k)
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
        long = self._shape.context + 1
        text = np.full((PROMPT_ROWS, long), -1, np.int32)
        text[:, 0] = 0  # rows without a prompt read something
        uniform = np.zeros((PROMPT_ROWS, long), np.float32)
        for r, window in enumerate(windows):
            text[r, : len(window)] = window
            drawn = numbers[r][len(texts[r]) - len(prompts[r]) :][: long - len(window)]
            # a double just below 1 would become 1 in float32
            uniform[r, len(window) : len(window) + len(drawn)] = np.minimum(drawn, np.nextafter(np.float32(1), 0))
        steps = min(max(goals), long) - 1
        self._device.write(self._buffers["text"], text)
        self._device.write(self._buffers["uniform"], uniform)
        self._device.write(self._buffers["sampling"].part(0, 1), np.zeros(1, np.int32))
        for _ in range(steps):
            self._graph.launch(self._device.stream)  # type: ignore[attr-defined]
        made = self._device.read(self._buffers["text"])
        return [made[r, : max(len(w), min(goals[r], steps + 1))].tolist() for r, w in enumerate(windows)]

    def _configure(self, temperature: float, top_k: int) -> None:
        """struct Sampling of kernels/generate.cu."""
        words = np.array([0, np.float32(temperature).view(np.int32), top_k, 0], np.int32)
        self._device.write(self._buffers["sampling"], words)
