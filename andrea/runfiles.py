"""What stands in a run's growing files, <EXP>.loss.json (the whole history) and <EXP>.samples.json.

    [
    {"step":1,"source":"chitchat","window":0,"loss":6.24,"norm":1.4,"lr":0.0001,"ms":18.2},
    {"step":1,"validation":{"chitchat":{"nats_per_token":6.2,"bits_per_byte":4.1}}}
    ]

One record a step and one a validation. Losses and norms are float32 values written exactly. A number that is not
finite is null, and "nonfinite" says what it was. `ms` is the mean wall time of a step in the engine, the only field
that a resumed run does not repeat. Where a window of the bandit ends, "firehose" has what it has learned of each source:
{"chitchat":{"reward":0.0031,"coverage":0.71}}. How the files grow is in recordfile.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from andrea.recordfile import Record, RecordFile, read_records

__all__ = ["History", "Record", "read_records", "step_record"]


class History:
    """<EXP>.loss.json: one record a step, and one a validation. Remembers the mean loss of each validation."""

    def __init__(self, path: Path) -> None:
        self.file = RecordFile(path)
        self.losses: dict[int, float] = {}  # step -> mean nats per token over the sources
        self.last = _consecutive(self.file.records)

    def cut(self, step: int) -> None:
        """Keep steps 1..`step` and their validations. The caller has made sure that they are there."""
        assert step <= self.last, f"cut to step {step}, history ends at {self.last}"
        for record in self.file.cut(step):
            self._remember(record)
        self.last = step

    def add_steps(self, records: Sequence[Record]) -> None:
        self.file.append(records)
        self.last = records[-1]["step"]

    def add_validation(self, step: int, results: Mapping[str, Mapping[str, float]]) -> None:
        record = {"step": step, "validation": {source: dict(result) for source, result in results.items()}}
        self.file.append([record])
        self._remember(record)

    def _remember(self, record: Record) -> None:
        results = record.get("validation")
        if results:
            self.losses[record["step"]] = math.fsum(r["nats_per_token"] for r in results.values()) / len(results)


def _consecutive(records: Iterable[Record]) -> int:
    """How far the training records go without a gap from step 1."""
    last = 0
    for record in records:
        if "validation" not in record:
            if record["step"] != last + 1:
                break
            last += 1
    return last


def step_record(step: int, source: str, window: int, loss: float, norm: float, lr: float, ms: float) -> Record:
    """One step of the history. `loss` in nats per token, `norm` before clipping, `ms` in milliseconds."""
    values = {"loss": loss, "norm": norm}
    odd = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
    finite = {name: None if name in odd else value for name, value in values.items()}
    record = {"step": step, "source": source, "window": window, **finite, "lr": lr, "ms": round(ms, 3)}
    return record | {"nonfinite": odd} if odd else record
