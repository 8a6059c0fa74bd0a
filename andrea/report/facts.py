"""What the data stages, the archive and the clock say about a run, as rows of tables."""

import csv
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from andrea import __version__
from andrea.checked import Checked
from andrea.experiment import Experiment
from andrea.files import require_file, sha256_file
from andrea.paths import SPLITS, archive_manifest, raw_datasets
from andrea.progress import short_time
from andrea.report.history import Run
from andrea.report.stages import draw
from andrea.training.finish import EVALUATION
from andrea.training.record import changes, made_with

Rows = list[tuple[str, Any]]
_WHO, _UNITS = ("model", "bigram"), ("bits_per_byte", "nats_per_token")
_STAGES = ("megachat", "tokenizer", "tokens")
_LOG_LINES = 150


def data_rows(experiment: Experiment, root: Path) -> list[dict[str, Any]]:
    """One row a source: counts through the stages, and where it came from."""
    folder = root / "data" / experiment.name
    megachat = Checked.read(folder / "megachat" / "manifest.json", "the megachat manifest").child("sources")
    tokens = Checked.read(folder / "tokens" / "manifest.json", "the tokens manifest").child("sources")
    return [_data_row(source, megachat.child(source), tokens.child(source)) for source in experiment.sources]


def _data_row(source: str, text: Checked, tokens: Checked) -> dict[str, Any]:
    train, heldout = text.child("train"), text.child("heldout")
    dropped = text.child("dropped")
    return {
        "source": source,
        **{key: text.text(key) for key in ("dataset", "bucket", "revision", "licence", "provenance")},
        "documents": f"{text.child('in').count('documents'):,}",
        "dropped": ", ".join(f"{dropped.count(why):,} {why}" for why in dropped.value if dropped.count(why)) or "0",
        "train_documents": f"{train.count('documents'):,}",
        "train_bytes": f"{train.count('bytes'):,}",
        "train_tokens": f"{tokens.child('train').count('tokens'):,}",
        "heldout_documents": f"{heldout.count('documents'):,}",
        "heldout_tokens": f"{tokens.child('heldout').count('tokens'):,}",
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


def stage_times(experiment: Experiment, root: Path, run: Run) -> dict[str, str]:
    """Wall time of each stage as Snakemake measured it when it last ran; training from its own history."""
    logs = {f"raw {d.name}": f"raw/{d.name}-{d.revision}" for d, _ in raw_datasets([experiment]).values()}
    logs |= {stage: f"{experiment.name}/{stage}" for stage in _STAGES}
    logs["archive"] = f"{experiment.name}/archive-{experiment.train.steps}"
    seconds = {label: _benchmark(root / "logs" / f"{file}.tsv") for label, file in logs.items()}
    seconds["train"] = run.seconds
    return {label: short_time(value) for label, value in seconds.items() if value is not None}


def timing_rows(experiment: Experiment, times: dict[str, str], run: Run) -> Rows:
    """The times as a table; of training, what its steps took and how fast they were."""
    tokens = len(run.steps) * experiment.train.batch_size * experiment.model.context
    rate = f", {tokens / max(run.seconds, 1e-9):,.0f} tokens/s (the steps alone)"
    return [(label, time + (rate if label == "train" else "")) for label, time in times.items()]


def drawing(experiment: Experiment, root: Path, times: dict[str, str]) -> Markup:
    """The stages with a figure and the time of each."""
    folder = root / "data" / experiment.name
    text = Checked.read(folder / "megachat" / "manifest.json", "the megachat manifest").child("sources")
    documents: dict[str, int] = {}
    for _, source in text.children():
        dataset = source.text("dataset")
        documents[dataset] = documents.get(dataset, 0) + source.child("in").count("documents")
    kept = sum(
        source.child(split).count("documents") for _, source in text.children() for split in ("train", "heldout")
    )
    tokens = sum(train_tokens(experiment, root).values())
    figures = {
        "megachat": f"{kept:,} documents",
        "tokenizer": f"{experiment.vocab_size:,} tokens",
        "tokens": f"{tokens / 1e6:,.1f} M tokens",
        "train": f"{experiment.train.steps:,} steps",
        "archive": f"step {experiment.train.steps:,}",
        "report": "this page",
    }
    raw = [(name, f"{count:,} documents", times.get(f"raw {name}", "")) for name, count in documents.items()]
    return draw(raw, {stage: (figure, times.get(stage, "")) for stage, figure in figures.items()})


def train_tokens(experiment: Experiment, root: Path) -> dict[str, int]:
    """source -> tokens of its training text"""
    tokens = Checked.read(root / "data" / experiment.name / "tokens" / "manifest.json", "the tokens manifest")
    return {
        source: tokens.child("sources").child(source).child("train").count("tokens") for source in experiment.sources
    }


def file_rows(experiment: Experiment, root: Path) -> Rows:
    """sha256 of the data: raw manifests, which name every shard's, text and token files."""
    rows: Rows = [(path, sha256_file(root / path)) for path in raw_datasets([experiment]) if (root / path).exists()]
    for stage in ("megachat", "tokens"):
        folder = Path("data") / experiment.name / stage
        manifest = Checked.read(root / folder / "manifest.json", f"the {stage} manifest").child("sources")
        for source in experiment.sources:
            for split in SPLITS:
                entry = manifest.child(source).child(split)
                rows.append((str(folder / entry.text("file")), entry.text("sha256")))
    return rows


def log_text(experiment: Experiment, root: Path) -> str:
    """What the trainer said, without its progress: starts, stops, validations. The first and last lines of a long one."""
    path = root / "runs" / experiment.name / "train.log"
    require_file(path)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    progress = re.compile(rf"\S+ \S+  {re.escape(experiment.name)} [\d,/]+ steps  ")
    lines = [line for line in text.split("\n") if line and not progress.match(line)]
    return "\n".join([*lines[:_LOG_LINES], "...", *lines[-_LOG_LINES:]] if len(lines) > 2 * _LOG_LINES else lines)


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
    rows.append(("different now, when this page was made", changes(last, made_with()) or "nothing"))
    return [*rows, ("andrea", __version__), ("snakemake", version("snakemake"))]
