"""What the data stages, the archive and the clock say about a run, as rows of tables."""

import csv
from pathlib import Path
from typing import Any

from andrea.experiment import Experiment
from andrea.paths import archive_manifest, raw_datasets
from andrea.progress import short_time
from andrea.report.checked import Checked
from andrea.report.history import Run
from andrea.training.finish import EVALUATION
from andrea.training.record import changes, made_with

Rows = list[tuple[str, Any]]
_WHO, _UNITS = ("model", "bigram"), ("bits_per_byte", "nats_per_token")
_STAGES = ("megachat", "tokenizer", "tokens")


def data_rows(experiment: Experiment, root: Path, run: Run) -> list[dict[str, Any]]:
    """One row a source: counts through the stages, where it came from, how often it was drawn."""
    folder = root / "data" / experiment.name
    megachat = Checked.read(folder / "megachat" / "manifest.json", "the megachat manifest").child("sources")
    tokens = Checked.read(folder / "tokens" / "manifest.json", "the tokens manifest").child("sources")
    return [
        _data_row(source, megachat.child(source), tokens.child(source), experiment, run)
        for source in experiment.sources
    ]


def _data_row(source: str, text: Checked, tokens: Checked, experiment: Experiment, run: Run) -> dict[str, Any]:
    train, heldout, pulls = text.child("train"), text.child("heldout"), run.pulls(source)
    train_tokens = tokens.child("train").count("tokens")
    drawn = pulls * experiment.train.batch_size * experiment.model.context
    dropped = text.child("dropped")
    return {
        "source": source,
        **{key: text.text(key) for key in ("dataset", "bucket", "revision", "licence", "provenance")},
        "documents": f"{text.child('in').count('documents'):,}",
        "dropped": ", ".join(f"{dropped.count(why):,} {why}" for why in dropped.value if dropped.count(why)) or "0",
        "train_documents": f"{train.count('documents'):,}",
        "train_bytes": f"{train.count('bytes'):,}",
        "train_tokens": f"{train_tokens:,}",
        "heldout_documents": f"{heldout.count('documents'):,}",
        "heldout_tokens": f"{tokens.child('heldout').count('tokens'):,}",
        "steps": f"{pulls:,}",
        "epochs": f"{drawn / max(train_tokens, 1):.2f}",
    }


def tokenizer_rows(experiment: Experiment, root: Path) -> Rows:
    """Every value of the tokenizer's own report; nested ones by their path."""
    path = root / "data" / experiment.name / "tokenizer" / "report.json"
    return flat(Checked.read(path, "the tokenizer's report").value)


def flat(value: dict[str, Any], prefix: str = "") -> Rows:
    """("a.b", value) for every value that is not itself an object; lists as their first few items."""
    rows: Rows = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += flat(item, f"{prefix}{key}.")
        elif isinstance(item, list):
            rows.append((prefix + key, ", ".join(map(str, item[:40])) + (" ..." if len(item) > 40 else "")))
        else:
            rows.append((prefix + key, f"{item:,}" if isinstance(item, int) and not isinstance(item, bool) else item))
    return rows


def timing_rows(experiment: Experiment, root: Path, run: Run) -> Rows:
    """Wall time of each stage as Snakemake measured it when it last ran; training from its own history."""
    logs = {f"raw {d.name}": f"raw/{d.name}-{d.revision}" for d, _ in raw_datasets([experiment]).values()}
    logs |= {stage: f"{experiment.name}/{stage}" for stage in _STAGES}
    seconds = {label: _benchmark(root / "logs" / f"{file}.tsv") for label, file in logs.items()}
    rows: Rows = [(label, short_time(value)) for label, value in seconds.items() if value is not None]
    training = sum(record["ms"] for record in run.steps) / 1000
    tokens = len(run.steps) * experiment.train.batch_size * experiment.model.context
    return [*rows, ("training steps", f"{short_time(training)}, {tokens / max(training, 1e-9):,.0f} tokens/s")]


def _benchmark(path: Path) -> float | None:
    """Seconds out of Snakemake's benchmark file; None when the stage was not run through Snakemake."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return float(next(csv.DictReader(file, delimiter="\t"))["s"])
    except (OSError, ValueError, KeyError, StopIteration):
        return None


def hash_rows(experiment: Experiment, root: Path) -> Rows:
    """sha256 of every archived file."""
    files = Checked.read(root / archive_manifest(experiment), "the archive's manifest").child("files")
    return [(name, facts.text("sha256")) for name, facts in files.children()]


def evaluation_rows(experiment: Experiment, root: Path) -> list[dict[str, str]]:
    """Model and bigram baseline on held-out text, one row a source and their mean."""
    path = root / "runs" / experiment.name / "archive" / str(experiment.train.steps) / EVALUATION
    result = Checked.read(path, "the final evaluation")
    rows = [*result.child("sources").children(), ("mean", result.child("mean"))]
    return [
        {"source": source, **{f"{who}_{unit}": f"{row.child(who).number(unit):.3f}" for who in _WHO for unit in _UNITS}}
        for source, row in rows
    ]


def version_rows(experiment: Experiment, root: Path) -> Rows:
    """What the run was made with from which step on, and what of that is different now."""
    path = root / "results" / experiment.name / "resolved.json"
    rows: Rows = []
    last: dict[str, str] = {}
    for entry in Checked.read(path, "the resolved experiment").list_of("made_with"):
        last = {name: entry.child("versions").text(name) for name in entry.child("versions").value}
        rows += [(f"from step {entry.count('from_step'):,}: {name}", value) for name, value in last.items()]
    return [*rows, ("different now, when this page was made", changes(last, made_with()) or "nothing")]
