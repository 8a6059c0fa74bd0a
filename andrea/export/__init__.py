"""`andrea export`: a model as a folder that the transformers library reads without any code of ours.

A pre-norm GPT-2 is what we train, so the weights only change their names; biases, which ours has none of, are zeros.
The folder appears whole or not at all.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.errors import StorageError
from andrea.export.card import render
from andrea.export.chart import loss_chart
from andrea.export.config import config, generation_config, tokenizer_config
from andrea.export.facts import gather
from andrea.export.safetensors import write
from andrea.export.weights import tensors
from andrea.files import require_free, storing, sync_folder, write_atomic, write_json
from andrea.talk.model import TOKENIZER, Model
from andrea.terminal import tell

CHART = "loss.svg"


def export(model: Model, folder: Path, root: Path) -> None:
    """Write the model's folder. `root` is the project, whose runs/ may have the loss history.

    Raises StorageError for a folder with something in it, DataError for a file of the run that is not what it should be.
    """
    _require_empty(folder)
    facts, missing = gather(model, root)
    weights = tensors(model)
    require_free(folder.parent, 5 * model.weights.size, "the export")
    files: dict[str, Mapping[str, Any]] = {
        "config.json": config(model.shape),
        "generation_config.json": generation_config(model.shape.context),
        "tokenizer_config.json": tokenizer_config(model.shape.context),
    }
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    with storing(folder):
        try:
            temporary.mkdir(parents=True)
            write(temporary / "model.safetensors", weights)
            for name, value in files.items():
                write_json(temporary / name, value)
            write_atomic(temporary / TOKENIZER, (model.path.parent / TOKENIZER).read_bytes())
            if facts.losses:
                write_atomic(temporary / CHART, loss_chart(facts.losses).encode())
            card = render(facts, CHART).encode(errors="replace")  # JSON can spell surrogates
            write_atomic(temporary / "README.md", card)
            temporary.rename(folder)  # onto a folder too, if it is empty
            sync_folder(folder.absolute().parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    tell(f"{folder}: {model.name}, step {model.step:,}, for transformers; README.md is its model card")
    for what in missing:
        print(f"the card says nothing of {what}")


def _require_empty(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise StorageError(
            f"{folder} must be an empty folder, or not there yet",
            got="something in it" if folder.is_dir() else "something else",
            fix="name another folder, or empty this one yourself",
        )
