"""The end of a run: archive, final evaluation against the baseline, and the model, which is renamed into place last."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.bigram import Bigram
from andrea.checkpoint import Checkpoint, size_of, write_model
from andrea.engine import Engine
from andrea.evaluate import MORE_BLOCKS, HeldOut, Rates, evaluate, hold_out
from andrea.experiment import Experiment
from andrea.files import require_free, write_atomic, write_json
from andrea.recordfile import read_records, to_array
from andrea.sampling import Sampler
from andrea.training.data import TrainingData
from andrea.training.gate import Gate

EVALUATION = "final_evaluation.json"


def archive_run(experiment: Experiment, folder: Path, engine: Engine, sampler: Sampler, gate: Gate) -> Path:
    """Copy samples and state to folder/archive/<step>; samples of the last step join them there, and only there.

    They are scored like all others: afterwards gate.scores holds the last step in any case.
    """
    step, name = experiment.train.steps, experiment.name
    archive = folder / "archive" / str(step)
    records = read_records(folder / f"{name}.samples.json")
    if step % experiment.samples.every:
        records += gate.score(sampler.sample(engine, step))
    write_atomic(archive / f"{name}.samples.json", to_array(records))
    write_atomic(archive / f"{name}.state.json", (folder / f"{name}.state.json").read_bytes())
    return archive


def evaluate_final(experiment: Experiment, data: TrainingData, engine: Engine, archive: Path) -> str:
    """Model and bigram on the same held-out blocks of every source. Kept in the archive; returns it as a table."""
    train, context = experiment.train, experiment.model.context
    most = MORE_BLOCKS * experiment.validation.blocks
    held = {
        source: hold_out(source, tokens, context, most, data.tokenizer.token_bytes)
        for source, tokens in data.heldout.items()
    }
    model = evaluate(engine, held, train.batch_size // train.microbatches, lambda: False)
    assert model is not None, "nothing stops this evaluation"
    baseline = {
        source: h.rates(math.fsum(Bigram(data.train[source].tokens, experiment.vocab_size).nats(h.blocks)))
        for source, h in held.items()
    }
    result = {"step": train.steps, "sources": _rows(held, model, baseline), "mean": _means(model, baseline)}
    write_json(archive / EVALUATION, result)
    return _table(result)


def publish(
    experiment: Experiment, results: Path, data: TrainingData, model: Checkpoint, facts: Mapping[str, Any]
) -> None:
    """Write resolved.json, tokenizer.json, and model.bin as the very last act."""
    require_free(results, size_of(model.weights.size), "the model")
    made = {"experiment": experiment.to_json(), "tokenizer_sha256": data.tokenizer.sha256, **facts}
    write_json(results / "resolved.json", made)
    write_atomic(results / "tokenizer.json", data.tokenizer_path.read_bytes())
    write_model(results / "model.bin", model)


def _rows(held: Mapping[str, HeldOut], model: Mapping[str, Rates], baseline: Mapping[str, Rates]) -> dict[str, Any]:
    return {
        source: {"tokens": h.tokens, "bytes": h.bytes, "model": model[source], "bigram": baseline[source]}
        for source, h in held.items()
    }


def _means(model: Mapping[str, Rates], baseline: Mapping[str, Rates]) -> dict[str, Rates]:
    """Over the sources, each counting once."""
    units = ("nats_per_token", "bits_per_byte")
    return {
        name: {unit: math.fsum(r[unit] for r in rates.values()) / len(rates) for unit in units}
        for name, rates in (("model", model), ("bigram", baseline))
    }


def _table(result: Mapping[str, Any]) -> str:
    rows = {**result["sources"], "mean": result["mean"]}
    width = max(map(len, rows))
    lines = [f"held-out text after step {result['step']:,}, in bits per byte (nats per token):"]
    for name, row in rows.items():
        cells = (
            f"{who} {row[who]['bits_per_byte']:.3f} ({row[who]['nats_per_token']:.3f})" for who in ("model", "bigram")
        )
        lines.append("  ".join([f"  {name:<{width}}", *cells]))
    return "\n".join(lines)
