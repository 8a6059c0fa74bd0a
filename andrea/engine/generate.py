"""Text from a model, one token a step, with a key and value cache.

A prompt is run through the training program once; after that each token costs one row. When the context is full,
the last half of it is run through the program again and generation goes on from there: positions then start anew,
so that a long text keeps at least half a context of memory.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from andrea.engine.interface import Choice
from andrea.engine.kernels import Array, Kernels
from andrea.engine.program import Program
from andrea.experiment import Shape
from andrea.philox import generator

COLDEST = 1e-200  # a float32 over less may leave the range of float64


class Generator:
    """Bound to an engine's weights and buffers; uses the activations of partition 0."""

    def __init__(
        self,
        shape: Shape,
        kernels: Kernels,
        weights: Mapping[str, Array],
        grads: Mapping[str, Array],
        program_buffers: Mapping[str, Array],
        buffers: Mapping[str, Array],
    ) -> None:
        self._shape, self._k, self._w, self._grads = shape, kernels, weights, grads
        self._program_buffers = program_buffers
        self._keys, self._values = buffers["cache.k"], buffers["cache.v"]
        self._token = {name.removeprefix("token."): b for name, b in buffers.items() if name.startswith("token.")}
        self._length = 0

    def stream(self, prompt: list[int], tokens: int, choice: Choice, rng: np.random.Generator) -> Iterator[int]:
        """`tokens` new tokens after `prompt`, one by one."""
        text = list(prompt)
        for i in range(tokens):
            if i == 0 or self._length == self._shape.context:
                logits = self._prefill(text[-(self._shape.context // 2) :] if i else text)
            else:
                logits = self._advance(text[-1])
            text.append(choose(logits, choice, rng))
            yield text[-1]

    def _prefill(self, text: list[int]) -> Array:
        """Fill the cache from `text`; the logits (V,) that follow it."""
        n = self._length = len(text)
        program = Program(
            self._shape, self._k, self._w, self._grads, self._program_buffers, rows=1, length=n, scale=1.0
        )
        program.ids[0] = text
        program.hidden()
        for layer in range(self._shape.n_layers):
            self._keys[layer, :n] = self._program_buffers[f"k.{layer}"][:n]
            self._values[layer, :n] = self._program_buffers[f"v.{layer}"][:n]
        return self._logits(self._program_buffers[f"y.{2 * self._shape.n_layers}"][n - 1])

    def _advance(self, token: int) -> Array:
        """One more token into the cache; the logits (V,) that follow it."""
        t, w, k, at = self._token, self._w, self._k, self._length
        t["id"][0] = token
        k.k_embed_fwd(t["x"], t["id"].reshape(1, 1), w["wte"], w["wpe"][at : at + 1])
        for layer in range(self._shape.n_layers):
            self._normalise(f"{layer}.LN1")
            key, value = self._keys[layer, at : at + 1], self._values[layer, at : at + 1]
            matrices = [w[f"{layer}.{name}"] for name in ("W_Q", "W_K", "W_V")]
            k.k_attn_qkv_fwd(t["q"], key, value, t["y"], *matrices)
            self._attend(layer, at + 1)
            k.k_attn_out_fwd(t["branch"], t["att"], w[f"{layer}.W_O"])
            k.k_residual_add(t["x"], t["x"], t["branch"])
            self._normalise(f"{layer}.LN2")
            k.k_mlp_fwd(t["branch"], t["h"], t["a"], t["y"], w[f"{layer}.W_1"], w[f"{layer}.W_2"])
            k.k_residual_add(t["x"], t["x"], t["branch"])
        self._normalise("LN_f")
        self._length += 1
        return self._logits(t["y"][0])

    def _normalise(self, name: str) -> None:
        t = self._token
        gamma, beta = self._w[name + ".gamma"], self._w[name + ".beta"]
        self._k.k_layernorm_fwd(t["y"], t["mean"], t["rstd"], t["x"], gamma, beta)

    def _attend(self, layer: int, n: int) -> None:
        """att (1, C) from q (1, C) and the n cached keys and values."""
        heads, d = self._shape.n_heads, self._shape.d_head
        q = self._token["q"].reshape(heads, d, 1)
        keys = self._keys[layer, :n].reshape(n, heads, d).transpose(1, 0, 2)  # (H, n, D)
        values = self._values[layer, :n].reshape(n, heads, d).transpose(1, 2, 0)  # (H, D, n)
        s = (keys @ q) * q.dtype.type(d**-0.5)  # (H, n, 1)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        self._token["att"].reshape(heads, d, 1)[:] = values @ p

    def _logits(self, hidden: Array) -> Array:
        head = self._w["wte" if self._shape.tied_head else "head"]
        logits: Array = np.matmul(head, hidden, out=self._token["logits"][0])
        return logits


def choose(logits: Array, choice: Choice, rng: np.random.Generator) -> int:
    """A token from logits (V,). Temperature 0 takes the likeliest, the lowest id of equals.

    Exactly one random number is used a token, so that the choice of one token cannot shift another's numbers.
    """
    if choice.temperature < COLDEST or not np.isfinite(logits).all():
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / choice.temperature
    if 0 < choice.top_k < len(scaled):
        scaled[np.argsort(-scaled, kind="stable")[choice.top_k :]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    if choice.top_p < 1:
        ranked = -np.sort(-weights)
        mass = np.cumsum(ranked)
        weights[weights < ranked[np.searchsorted(mass, choice.top_p * mass[-1])]] = 0  # equals of the last stay
    edges = np.cumsum(weights)
    return int(min(np.searchsorted(edges, rng.random() * edges[-1], side="right"), len(scaled) - 1))


def generate(
    machine: Generator, prompts: list[list[int]], tokens: int, choice: Choice, seed: int, step: int
) -> list[list[int]]:
    """New tokens for each prompt; each has its own stream, so the others do not matter to it."""
    with np.errstate(all="ignore"):
        return [
            list(machine.stream(prompt, tokens, choice, generator(seed, "sample", step, i)))
            for i, prompt in enumerate(prompts)
        ]
