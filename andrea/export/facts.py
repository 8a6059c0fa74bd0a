"""What a model card says, out of the run's own files, each checked field by field.

resolved.json is always there. The archive beside the model names its data, its final evaluation and its samples; the
run folder has the loss history. Where one of them is not at hand, or belongs to another run, the card leaves that out,
and whoever exports is told so.
"""

from dataclasses import dataclass, field
from pathlib import Path

from andrea.archive import MANIFEST, PROVENANCE
from andrea.checked import Checked
from andrea.errors import DataError
from andrea.files import sha256_file
from andrea.recordfile import read_records
from andrea.report.curves import Points
from andrea.talk.model import Model
from andrea.training.finish import EVALUATION
from andrea.training.runfolder import is_of_run

Row = dict[str, str]
_SETTINGS = ("engine", "precision", "batch_size", "steps", "lr", "warmup_steps", "weight_decay", "clip", "seed")


@dataclass
class Facts:
    """What is known. `sources`: name -> PROVENANCE fields; `rates`: source -> model and bigram, bits per byte."""

    model: Model
    description: str
    settings: dict[str, str]
    versions: dict[str, str]
    sources: dict[str, Row] = field(default_factory=dict)
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)
    losses: Points = field(default_factory=list)


def gather(model: Model, root: Path) -> tuple[Facts, list[str]]:
    """Facts, and what is not at hand. DataError for a file that is there and not what it should be."""
    experiment = model.resolved.child("experiment")
    train = experiment.child("train")
    settings = {key: str(train.value[key]) for key in _SETTINGS if isinstance(train.value.get(key), str | int | float)}
    facts = Facts(model, experiment.text("description"), settings, _versions(model.resolved))
    missing = []
    archive = _archive(model)
    if archive is None:
        missing += ["data and licences, the final evaluation and samples (no archive of this model)"]
    else:
        _read_archive(facts, archive)
    run = root / "runs" / model.name
    if is_of_run(model.resolved.value, run):
        facts.losses = _losses(run / f"{model.name}.loss.json", model.step)
    if not facts.losses:
        missing += [f"the losses (no history of this run in {run})"]
    return facts, missing


def _versions(resolved: Checked) -> dict[str, str]:
    """Of the last part of the run."""
    if "made_with" not in resolved.value:
        return {}
    entries = [entry.child("versions") for entry in resolved.list_of("made_with")]
    return {name: entries[-1].text(name) for name in entries[-1].value} if entries else {}


def _archive(model: Model) -> Path | None:
    """The archive of this very model: beside it, or the model's own folder."""
    for folder in (model.path.parent / "archive" / str(model.step), model.path.parent):
        if (folder / MANIFEST).is_file():
            manifest = Checked.read(folder / MANIFEST, "the archive's manifest")
            if manifest.child("files").child("model.bin").text("sha256") != sha256_file(model.path):
                raise DataError(
                    f"{folder} must be the archive of {model.path}",
                    got="a model.bin with another hash",
                    fix="run the archive stage, or export the archive's own model",
                )
            return folder
    return None


def _read_archive(facts: Facts, folder: Path) -> None:
    sources = Checked.read(folder / MANIFEST, "the archive's manifest").child("sources")
    facts.sources = {name: {key: row.text(key) for key in PROVENANCE} for name, row in sources.children()}
    result = Checked.read(folder / EVALUATION, "the final evaluation")
    for name, row in [*result.child("sources").children(), ("mean", result.child("mean"))]:
        facts.rates[name] = (row.child("model").number("bits_per_byte"), row.child("bigram").number("bits_per_byte"))
    path = folder / f"{facts.model.name}.samples.json"
    records = [Checked(record, path) for record in read_records(path)]
    facts.samples = [(r.text("prompt"), r.text("text")) for r in records if r.count("step") == facts.model.step]


def _losses(path: Path, last: int) -> Points:
    """(step, nats per token) up to the model's step, where finite."""
    points: Points = []
    for record in read_records(path):
        fields = Checked(record, path, f"step {record['step']}")
        if record.get("loss") is not None and 0 < record["step"] <= last:
            points.append((record["step"], fields.number("loss")))
    return points
