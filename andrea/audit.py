"""`andrea firehose`: why the firehose draws what it draws, and what a step has read.

Everything follows from a saved state, the loss history and the token files; a run under way may be looked at.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.bandit import Bandit
from andrea.batches import Batches
from andrea.errors import RunError
from andrea.experiment import Experiment, load
from andrea.files import read_json
from andrea.fingerprint import fingerprint
from andrea.firehose import open_firehose
from andrea.paths import experiment_file
from andrea.recordfile import Record, read_records
from andrea.tokenizer import Tokenizer
from andrea.training.data import TrainingData, open_data
from andrea.training.pivot import misfit
from andrea.training.position import Position
from andrea.training.runfolder import RECORD
from andrea.window import Firehose

_STATE = ".state.json"
NEXT = "\n--- next document ---\n"


@dataclass(frozen=True)
class Audited:
    """A run's state beside the data that it was made on."""

    experiment: Experiment
    folder: Path
    data: TrainingData
    batches: Batches
    position: Position
    firehose: Firehose


def open_audit(target: str, experiment_path: Path, root: Path) -> Audited:
    """`target`: a run folder, a .state.json in one, or an experiment, whose file is then `experiment_path`."""
    path = Path(target)
    if path.is_dir() or target.endswith(_STATE):
        folder = _run_folder(path)
        name = folder.name.split(".")[0]
        experiment = load(root / experiment_file(name))
    else:
        experiment = load(experiment_path)
        folder = root / "runs" / experiment.name
    state_file = path if target.endswith(_STATE) else folder / f"{experiment.name}{_STATE}"
    data = open_data(experiment, root)
    state = read_json(state_file, "the run's state, made with its first checkpoint,")
    if state.get("fingerprint") != fingerprint(experiment, data.manifest, data.tokenizer.sha256).digest:
        raise RunError(
            f"{state_file} must belong to {experiment.path} and its data",
            got="another fingerprint",
            fix="set model, train, firehose and data back to what the run was made with",
        )
    wrong = misfit(state.get("step", 0), state.get("polish"), experiment)
    if wrong and state.get("polish") is not None:
        raise RunError(f"{state_file} must fit the polish section of {experiment.path}", got=wrong, fix="set it back")
    batches = Batches(data.train, experiment.model.context, experiment.train.batch_size, experiment.train.seed)
    firehose = open_firehose(experiment, batches, polished=state.get("polish") is not None)
    position = Position.from_json(state, firehose, list(experiment.sources), state_file)
    return Audited(experiment, folder, data, batches, position, firehose)


def arms_table(a: Audited) -> str:
    """One line an arm: what it has had, and its chances in the window under way."""
    window = a.position.window
    rows = {name: _common(a, name) for name in sorted(a.experiment.sources)}
    if isinstance(a.firehose, Bandit):
        _add_bandit(rows, a.firehose, window.number, window.start)
    for name, row in rows.items():
        row["window"] = str(window.sources.count(name))
    last = window.start + len(window.sources)
    head = f"{a.experiment.name}, step {a.position.step:,}; policy {a.experiment.firehose.policy}"
    head += ", after the polish pivot" if a.position.polish else ""
    return "\n".join([f"{head}; window {window.number:,} is steps {window.start + 1:,} to {last:,}", *_aligned(rows)])


def step_view(a: Audited, step: int, characters: int) -> str:
    """What `step` read: each row's block, documents and decoded text, cut after `characters`."""
    records = [r for r in read_records(a.folder / f"{a.experiment.name}.loss.json") if "source" in r]
    record: Record | None = next((r for r in records if r["step"] == step), None)
    if record is None:
        raise RunError(
            f"step {step:,} must be on record in {a.folder}",
            got=f"steps 1 to {len(records):,}" if records else "no steps",
            fix="choose a step that has been trained",
        )
    source = record["source"]
    pulls = sum(r["source"] == source for r in records[: step - 1])
    lines = [f"step {step:,}: {source}, pull {pulls + 1:,}, window {record['window']:,}, loss {record['loss']}"]
    blocks = a.batches.blocks(source, pulls)
    rows = a.batches.draw(source, pulls).tolist()
    for row, (block, ids) in enumerate(zip(blocks.tolist(), rows, strict=True)):
        documents = a.batches.documents(source, block)
        text = _decoded(ids, a.data.tokenizer)
        shown = text if len(text) <= characters else text[:characters] + "..."
        which = (
            f"document {documents[0]:,}" if len(documents) == 1 else f"documents {documents[0]:,} to {documents[-1]:,}"
        )
        lines.append(f"\nrow {row}: block {block:,}, {which}\n{shown}")
    return "\n".join(lines)


def _decoded(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of a row, with a line between two documents."""
    starts = [0, *(place for place, token in enumerate(ids) if place and token == tokenizer.bos), len(ids)]
    return NEXT.join(tokenizer.decode(list(ids[start:end])) for start, end in itertools.pairwise(starts))


def _common(a: Audited, name: str) -> dict[str, str]:
    pulls = a.position.pulls[name]
    return {"source": name, "pulls": f"{pulls:,}", "epochs": f"{a.batches.epochs(name, pulls):.2f}"}


def _add_bandit(rows: Mapping[str, dict[str, str]], bandit: Bandit, number: int, start: int) -> None:
    rank, cover = bandit.rank(number, start), bandit.coverage.shares()
    for i, name in enumerate(bandit.names):
        arm = bandit.arms[name]
        values = {
            "ema": arm.signal.fast,
            "reward": arm.signal.reward,
            "bonus": rank.bonus[i],
            "penalty": rank.penalty[i],
            "index": rank.index[i],
            "floor": bandit.spec.floors[name],
            "cap": bandit.spec.caps[name],
            "weight": rank.weight[i],
            "probability": rank.probability[i],
        }
        rows[name]["coverage"] = f"{cover[i]:.1%}"
        rows[name] |= {key: f"{value:.3f}" for key, value in values.items()}
        rows[name]["focus"] = "yes" if rank.focus[i] else "no" if rank.eligible[i] else "off"


def _aligned(rows: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """A table with a header; the first column to the left, the others to the right."""
    names = list(next(iter(rows.values())))
    table = [names, *([row[name] for name in names] for row in rows.values())]
    widths = [max(len(line[i]) for line in table) for i in range(len(names))]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in table]


def _run_folder(path: Path) -> Path:
    for folder in (path, *path.resolve().parents):
        if (folder / RECORD).exists():
            return folder
    raise RunError(f"{path} must lie in a run folder", got=f"no {RECORD} beside or above it", fix="name runs/<EXP>")
