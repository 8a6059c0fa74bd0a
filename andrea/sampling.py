"""Text that the model writes after fixed prompts, so that its progress can be read.

A prompt is a user turn; the model writes the reply. An empty prompt is BOS alone: the model begins a document by
itself. The text shown ends where the reply does, before the next user turn or document; `raw` is all of it.
"""

from collections.abc import Callable

from andrea.engine import Choice, Engine
from andrea.errors import ExperimentError
from andrea.experiment import Experiment
from andrea.megachat import SEPARATOR, USER, prompt_text
from andrea.recordfile import Record
from andrea.tokenizer import Tokenizer


class Sampler:
    """The experiment's prompts, encoded. ExperimentError when one of them does not fit the context."""

    def __init__(self, experiment: Experiment, tokenizer: Tokenizer) -> None:
        self.spec, self.seed, self.tokenizer = experiment.samples, experiment.train.seed, tokenizer
        self.prompts = [self._encode(prompt) for prompt in self.spec.prompts]
        for prompt, ids in zip(self.spec.prompts, self.prompts, strict=True):
            if len(ids) >= experiment.model.context:
                raise ExperimentError(
                    f"a prompt must leave room in the context of {experiment.model.context} tokens",
                    got=f"{len(ids)} tokens for {prompt[:40]!r}",
                    fix="shorten it in samples.prompts, or raise model.context",
                )

    def sample(self, engine: Engine, step: int) -> list[Record]:
        """One record a prompt, from the engine's weights; the same weights and step give the same text."""
        return self.begin(engine, step)()

    def begin(self, engine: Engine, step: int) -> Callable[[], list[Record]]:
        """As `sample`, by the call of what is returned. Between the two only evaluation and snapshots have a place."""
        spec = self.spec
        drawn = engine.begin_generate(self.prompts, spec.tokens, Choice(spec.temperature, spec.top_k), self.seed, step)
        return lambda: [self._record(step, prompt, ids) for prompt, ids in zip(spec.prompts, drawn(), strict=True)]

    def _encode(self, prompt: str) -> list[int]:
        text = prompt_text(prompt) if prompt else ""
        return [self.tokenizer.bos, *self.tokenizer.encode(text).tolist()]

    def _record(self, step: int, prompt: str, ids: list[int]) -> Record:
        documents = self._documents(ids)
        text = documents[0].split("\n" + USER)[0] if prompt else documents[0]
        return {"step": step, "prompt": prompt, "text": text, "raw": SEPARATOR.join(documents), "tokens": len(ids)}

    def _documents(self, ids: list[int]) -> list[str]:
        """The text between BOS tokens, decoded piece by piece."""
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self.tokenizer.bos:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return [self.tokenizer.decode(piece) for piece in pieces]
