"""What makes two runs the same run: the experiment's model, train and firehose sections and the data.

`train.steps` is left out, because raising it goes on with the same run, and so is the polish section, which acts only
from its pivot on (training/pivot.py). Everything else about an experiment may change under a run without changing its
steps. `train.recompute` changes no bit and is in all the same: the train section has one exception, not a list of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from andrea.experiment import Experiment, canonical
from andrea.files import sha256_bytes

_LEFT_OUT = {"train": ("steps",)}


@dataclass(frozen=True)
class Fingerprint:
    """`parts` in plain JSON values, and the sha256 of their canonical JSON."""

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return sha256_bytes(canonical(self.parts).encode())

    @property
    def short(self) -> str:
        """12 hex digits, for folder names."""
        return self.digest[:12]


def fingerprint(experiment: Experiment, tokens: Mapping[str, Any], tokenizer_sha256: str) -> Fingerprint:
    """Of an experiment on its data; `tokens` is the tokens manifest (sources -> splits -> sha256)."""
    parts: dict[str, Any] = {}
    for name in ("model", "train", "firehose"):
        section = experiment.section(name)
        parts[name] = {key: value for key, value in section.items() if key not in _LEFT_OUT.get(name, ())}
    parts["tokens"] = {
        source: {split: tokens["sources"][source][split]["sha256"] for split in ("train", "heldout")}
        for source in sorted(experiment.sources)
    }
    parts["tokenizer"] = tokenizer_sha256
    return Fingerprint(parts)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What sets two fingerprints apart: `train.lr 0.005 -> 0.004, ...`, hashes shortened."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return ", ".join(f"{key} {_short(before.get(key))} -> {_short(after.get(key))}" for key in changed)


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else key)]
    return [(path, value)]


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 24 else text[:12] + "..."
