"""Samples as they come: the mean coherence of every round, and the texts of the last few."""

from statistics import fmean
from typing import Any

from andrea.dashboard.history import is_number

KEPT_ROUNDS = 3
_MOST_TEXTS = 100  # of a round
_LONGEST = 20_000  # characters of a text that are shown


class Samples:
    """The records of one .samples.json. `texts` maps the last steps to [{"prompt", "text", "coherence"}]."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._scores: dict[int, list[float]] = {}
        self.texts: dict[int, list[dict[str, Any]]] = {}

    def take(self, record: Any) -> bool:
        """Keep one record; False when it is not what the trainer writes."""
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            return False
        step: int = record["step"]
        prompt, text, score = (record.get(key) for key in ("prompt", "text", "coherence"))
        if not isinstance(prompt, str) or not isinstance(text, str) or not (score is None or is_number(score)):
            return False
        if step < max(self.texts, default=0) or step > 2**53:
            return False
        texts = self.texts.setdefault(step, [])
        if len(texts) < _MOST_TEXTS:
            texts.append({"prompt": _cut(prompt), "text": _cut(text), "coherence": score})
        for old in list(self.texts)[:-KEPT_ROUNDS]:
            del self.texts[old]
        if isinstance(score, int | float):
            self._scores.setdefault(step, []).append(score)
        return True

    def update(self, later: "Samples") -> None:
        """Take over the rounds of `later`."""
        self._scores |= later._scores
        texts = self.texts | later.texts
        self.texts = {step: texts[step] for step in sorted(texts)[-KEPT_ROUNDS:]}

    @property
    def scores(self) -> dict[int, float]:
        """step -> mean coherence, 0 to 100."""
        return {step: fmean(scores) for step, scores in self._scores.items()}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
