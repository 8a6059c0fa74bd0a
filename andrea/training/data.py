"""The token files and the tokenizer of an experiment, opened and checked against their manifests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.btok import Btok, open_btok
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.files import read_json, sha256_file
from andrea.tokenizer import Tokenizer, load


@dataclass(frozen=True)
class TrainingData:
    """Token files by source, one a split; `manifest` is the tokens manifest, `tokenizer_path` what is published."""

    train: Mapping[str, Btok]
    heldout: Mapping[str, Btok]
    tokenizer: Tokenizer
    tokenizer_path: Path
    manifest: Mapping[str, Any]


def open_data(experiment: Experiment, root: Path) -> TrainingData:
    """Open what the data stages made under root/data/<EXP>. DataError when a file is not what its manifest says."""
    folder = root / "data" / experiment.name
    tokenizer_path = folder / "tokenizer" / "tokenizer.json"
    tokenizer = load(tokenizer_path)
    manifest = read_json(folder / "tokens" / "manifest.json", "the tokens manifest")
    _check("vocab_size", manifest.get("vocab_size"), experiment.vocab_size, experiment)
    _check("vocab_size of the tokenizer", tokenizer.vocab_size, experiment.vocab_size, experiment)
    _check("tokenizer_sha256", manifest.get("tokenizer_sha256"), tokenizer.sha256, experiment)
    splits = {
        split: {source: _open(folder / "tokens", manifest, source, split) for source in experiment.sources}
        for split in ("train", "heldout")
    }
    return TrainingData(splits["train"], splits["heldout"], tokenizer, tokenizer_path, manifest)


def _open(folder: Path, manifest: Mapping[str, Any], source: str, split: str) -> Btok:
    try:
        entry = manifest["sources"][source][split]
        path, sha256 = folder / f"{source}.{split}.btok", entry["sha256"]
    except (KeyError, TypeError) as cause:
        raise _stale(folder, f"no entry for {source}.{split}") from cause
    tokens = open_btok(path)
    if tokens.tokenizer_sha256 != manifest["tokenizer_sha256"] or tokens.vocab_size != manifest["vocab_size"]:
        raise _stale(path, "tokens of another tokenizer")
    if sha256_file(path) != sha256:
        raise _stale(path, "other bytes than the manifest says")
    return tokens


def _check(what: str, got: object, must: object, experiment: Experiment) -> None:
    if got != must:
        raise _stale(Path("data") / experiment.name / "tokens", f"{what} {got} where {must} is needed")


def _stale(path: Path, got: object) -> DataError:
    return DataError(
        f"{path} must be what the tokens stage made", got=got, fix="delete it: the tokens stage remakes it"
    )
