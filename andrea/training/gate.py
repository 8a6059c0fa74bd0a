"""The coherence gate of a run: scores every sample, and stops the run when the model has begun to babble.

The gate remembers nothing of its own: what it judges stands in <EXP>.samples.json, so that a resumed run halts where
an undisturbed one does.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from statistics import fmean

import numpy as np

from andrea.btok import Btok
from andrea.errors import RunError
from andrea.experiment import SamplesSpec
from andrea.quality import babbling, coherence, word_list
from andrea.runfiles import Record
from andrea.tokenizer import Tokenizer

HALTED = "halted"  # in the run folder: why, as long as the run has not been started again
EXIT_HALTED = 76  # the model babbles: the same command would be of no use
_STRETCHES, _LENGTH = 256, 8192  # of tokens, shared by the sources, that the list of known words is made from


class Halt(RunError):
    """The model has babbled for `samples.halt_after` rounds in a row."""


class Gate:
    """Scores rounds of samples. `scores` maps a step to the mean score of its samples, in the order of the steps."""

    def __init__(self, spec: SamplesSpec, known: frozenset[str]) -> None:
        self.spec, self.known = spec, known
        self.scores: dict[int, float] = {}

    def recall(self, records: Iterable[Record]) -> None:
        """Take over the rounds that a run file holds, and forget all others."""
        rounds = {step: list(found) for step, found in groupby(records, key=lambda record: record["step"])}
        scores = {step: [r["coherence"] for r in found if "coherence" in r] for step, found in rounds.items()}
        self.scores = {step: fmean(values) for step, values in scores.items() if values}

    def score(self, records: list[Record]) -> list[Record]:
        """The records of one round with their scores; the round counts from now on."""
        scored = [record | {"coherence": round(coherence(record["raw"], self.known).total, 2)} for record in records]
        self.scores[scored[0]["step"]] = fmean(record["coherence"] for record in scored)
        return scored

    def babbling(self) -> bool:
        """Whether the last rounds are all under the bar."""
        return babbling(list(self.scores.values()), self.spec.halt_below, self.spec.halt_after)

    def halt(self) -> Halt:
        """The error that says so."""
        spec, last = self.spec, list(self.scores.items())[-self.spec.halt_after :]
        return Halt(
            f"samples must not score under {spec.halt_below:g} of 100 {spec.halt_after} times in a row",
            got=", ".join(f"{score:.0f} at step {step:,}" for step, score in last) + ": the model babbles",
            fix="train anew with a lower train.lr or another recipe, or set samples.halt_after to 0 to go on; "
            "the last checkpoint is kept",
        )


def known_words(tokens: Mapping[str, Btok], tokenizer: Tokenizer) -> frozenset[str]:
    """Words of the training text, from stretches spread evenly over every source."""
    texts = []
    for source in sorted(tokens):
        ids = tokens[source].tokens
        stretches = min(_STRETCHES // len(tokens) + 1, -(-len(ids) // _LENGTH))
        starts = np.linspace(0, max(0, len(ids) - _LENGTH), stretches).astype(int)
        texts += [tokenizer.decode(ids[start : start + _LENGTH].tolist()) for start in starts]
    return word_list(texts)
