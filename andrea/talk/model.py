"""A trained model on disk: found by name or path, and checked before it is believed.

Unusual: it needs no experiment file. The sizes come from resolved.json, so that a model can be used in a folder where
nothing else of its project is left, and after the schema of experiments has grown.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from andrea.checked import Checked
from andrea.checkpoint import Flat, read_weights
from andrea.engine.layout import count
from andrea.errors import DataError
from andrea.experiment import BYTES, Shape
from andrea.paths import full_name
from andrea.tokenizer import Tokenizer, load
from andrea.tokenizer.exported import MAX_SEGMENTS

MODEL, RESOLVED, TOKENIZER = "model.bin", "resolved.json", "tokenizer.json"
MOST = {"d_model": 16384, "n_heads": 256, "n_layers": 256, "context": 65536}  # as the experiment's schema
_NAME = re.compile(r"ANDREA-[A-Z0-9]+(-[A-Z0-9]+)*")


@dataclass(frozen=True)
class Model:
    """`weights` (n,) float32 in layout order; `precision` is what it was trained in; `resolved` is resolved.json."""

    path: Path
    name: str
    step: int
    shape: Shape
    precision: str
    weights: Flat
    tokenizer: Tokenizer
    resolved: Checked


def find_model(name: str) -> Path:
    """A .bin as it is, a folder's model.bin, or results/<EXP>/model.bin of an experiment's name. DataError when none is there."""
    path = Path(name)
    if path.is_file():
        return path
    if (path / MODEL).is_file():
        return path / MODEL
    found = Path("results") / full_name(name) / MODEL
    if "/" not in name and found.is_file():
        return found
    known = sorted(p.parent.name for p in Path("results").glob(f"*/{MODEL}"))
    raise DataError(
        f"{name} must be a trained model: an experiment's name, a folder with {MODEL}, or that file",
        got=f"neither {path / MODEL} nor {found}; in results/: {', '.join(known) or 'none'}",
        fix="train it first (make tiny, or .venv/bin/snakemake --cores all train_12m), or name one of those",
    )


def open_model(name: str) -> Model:
    """Read and check a model with its tokenizer. DataError or CheckpointError says what does not fit."""
    path = find_model(name)
    for file in (RESOLVED, TOKENIZER):
        if not (path.parent / file).is_file():
            raise DataError(
                f"{path} must have {RESOLVED} and {TOKENIZER} beside it",
                got=f"no {file}",
                fix="use the model in results/<EXP>/ or in its archive, or copy all three files",
            )
    resolved = Checked.read(path.parent / RESOLVED, "the resolved experiment")
    experiment = resolved.child("experiment")
    shape, tokenizer = _shape(experiment), load(path.parent / TOKENIZER)
    _check_tokenizer(resolved, shape, tokenizer, path.parent / TOKENIZER)
    step, weights = read_weights(path, count(shape))
    precision = experiment.child("train").text("precision")
    return Model(path, _name(experiment), step, shape, precision, weights, tokenizer, resolved)


def _name(experiment: Checked) -> str:
    name = experiment.text("name")
    _require(bool(_NAME.fullmatch(name)), experiment, "name", "like ANDREA-TINY", name)
    return name


def _shape(experiment: Checked) -> Shape:
    """The sizes, within what an experiment may ask for."""
    model, segments = experiment.child("model"), experiment.child("tokenizer").count("segments")
    sizes = {key: model.count(key) for key in MOST}
    for key, most in MOST.items():
        _require(1 <= sizes[key] <= most, model, key, f"1 to {most:,}", sizes[key])
    _require(segments <= MAX_SEGMENTS, experiment, "tokenizer.segments", f"at most {MAX_SEGMENTS:,}", segments)
    heads, tied = sizes["n_heads"], model.value.get("tied_head")
    _require(sizes["d_model"] % heads == 0, model, "n_heads", f"a divisor of {sizes['d_model']}", heads)
    _require(isinstance(tied, bool), model, "tied_head", "true or false", tied)
    return Shape(segments + BYTES + 1, sizes["d_model"], heads, sizes["n_layers"], sizes["context"], tied is True)


def _require(holds: bool, place: Checked, key: str, must: str, got: object) -> None:
    if not holds:
        where = f"{place.where}.{key}" if place.where else key
        raise DataError(
            f"{place.path}: {where} must be {must}",
            got=got,
            fix="put back the file that training wrote beside model.bin",
        )


def _check_tokenizer(resolved: Checked, shape: Shape, tokenizer: Tokenizer, path: Path) -> None:
    """The tokenizer must be the one that the model was trained with; older models do not say its hash."""
    wanted = resolved.value.get("tokenizer_sha256", tokenizer.sha256)
    if tokenizer.vocab_size != shape.vocab_size or wanted != tokenizer.sha256:
        raise DataError(
            f"{path} must be the model's own tokenizer: vocabulary {shape.vocab_size:,}, sha256 {str(wanted)[:12]}...",
            got=f"vocabulary {tokenizer.vocab_size:,}, sha256 {tokenizer.sha256[:12]}...",
            fix="put back the tokenizer.json that training wrote beside model.bin",
        )
