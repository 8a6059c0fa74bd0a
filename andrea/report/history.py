"""The run's own files, checked: every step once with finite or null numbers, validations, samples of all archives."""

from pathlib import Path
from typing import Any, NamedTuple

from andrea.checked import Checked
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.paths import archived_steps
from andrea.runfiles import Record, read_records


class Run(NamedTuple):
    """`steps`: one record a step from 1 on; `validations`; `samples` in the order of their steps."""

    steps: list[Record]
    validations: list[Record]
    samples: list[Record]

    @property
    def seconds(self) -> float:
        """Of all steps in the engine, and nothing else."""
        return float(sum(record["ms"] for record in self.steps)) / 1000

    def pulls(self, source: str) -> int:
        """How many steps drew from `source`."""
        return sum(record["source"] == source for record in self.steps)


def read_run(experiment: Experiment, root: Path) -> Run:
    """Read runs/<EXP>; DataError when the history is not whole up to the experiment's last step."""
    folder, name, last = root / "runs" / experiment.name, experiment.name, experiment.train.steps
    path = folder / f"{name}.loss.json"
    records = read_records(path)
    steps = [_checked_step(record, path) for record in records if "validation" not in record]
    if [record["step"] for record in steps] != list(range(1, last + 1)):
        raise DataError(
            f"{path} must hold every step from 1 to {last}",
            got=f"{len(steps)} steps" if path.exists() else "no such file",
            fix=f"put the file back, or train anew: .venv/bin/andrea fresh {name}, then the same command again",
        )
    validations = [_checked_validation(record, path) for record in records if "validation" in record]
    samples = [
        _checked_sample(record, file)
        for step in archived_steps(folder)
        if step <= last
        for file in [folder / "archive" / str(step) / f"{name}.samples.json"]
        for record in read_records(file)
    ]
    return Run(steps, validations, samples)


def _checked_step(record: Record, path: Path) -> Record:
    fields = Checked(record, path, f"step {record['step']}")
    for key in ("loss", "norm"):
        if record.get(key, 0) is not None:
            fields.number(key)
    for key in ("lr", "ms"):
        fields.number(key)
    fields.text("source")
    if "firehose" in record:
        for _, learned in fields.child("firehose").children():
            learned.number("reward"), learned.number("coverage")
    return record


def _checked_validation(record: Record, path: Path) -> Record:
    for _, result in Checked(record, path, f"step {record['step']}").child("validation").children():
        result.number("nats_per_token")
        result.number("bits_per_byte")
    return record


def _checked_sample(record: Record, path: Path) -> Record:
    fields = Checked(record, path, f"sample at step {record['step']}")
    fields.text("prompt"), fields.text("text")
    return record


def by_step(samples: list[Record]) -> list[dict[str, Any]]:
    """[{"step", "samples"}], newest first. Archives overlap when a run goes on: equal samples count once."""
    rounds: dict[int, list[Record]] = {}
    for sample in samples:
        known = rounds.setdefault(sample["step"], [])
        if sample not in known:
            known.append(sample)
    return [{"step": step, "samples": rounds[step]} for step in sorted(rounds, reverse=True)]
