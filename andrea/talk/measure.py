"""`andrea eval`: how well a model predicts a text: nats per token, perplexity, and bits per byte, which tokenizers share.

The text is cut into blocks as in training and validation: T targets each, the token before them is context only. A last
block that is not full counts, too. Bits per byte counts the bytes of the targets; BOS, which opens a document, has none.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea import megachat
from andrea.btok import open_btok
from andrea.checked import Checked
from andrea.engine import Inference
from andrea.errors import DataError
from andrea.evaluate import MORE_BLOCKS, Rates, rates
from andrea.progress import Progress
from andrea.sources.folder import KINDS, feed, items
from andrea.talk.model import Model
from andrea.tokenizer import BOS, Tokenizer

GROUP = 32  # blocks between two updates of the progress line
BLOCKS = 256  # of a text, when nobody says how many
Ids = NDArray[Any]


def corpora(model: Model, corpus: Path | None, root: Path, threads: int) -> dict[str, Ids]:
    """Source -> token ids. None: the experiment's own held-out token files under root/data. DataError for what cannot be read."""
    if corpus is None:
        return _held_out(model, root / "data" / model.name / "tokens")
    if corpus.suffix == ".btok":
        return {corpus.stem: _open(corpus, model.tokenizer)}
    if not corpus.is_dir() and (corpus.suffix.lower() not in KINDS or not corpus.is_file()):
        got = "something else" if corpus.exists() else "no such file"
        must = f"{corpus} must be a .btok, .jsonl or .txt file, or a folder of .jsonl and .txt files"
        raise DataError(must, got=got, fix="check the name")
    records = feed(corpus).items if corpus.is_dir() else items([corpus])
    texts = (megachat.encode(item.parsed.document) for item in records if item.parsed is not None)
    encoded = list(model.tokenizer.encode_many(texts, threads, bos=True))
    if not encoded:
        raise DataError(f"{corpus} must hold text", got="nothing but blanks", fix="put some text there")
    return {corpus.name: np.concatenate(encoded)}


def final_blocks(model: Model) -> int:
    """How many blocks of a source the final evaluation of the model's run has read at most."""
    return MORE_BLOCKS * model.resolved.child("experiment").child("validation").count("blocks")


def evaluate(
    model: Model, engine: Inference, sources: Mapping[str, Ids], most: int, *, whole: bool = False
) -> dict[str, Any]:
    """Rates of each source on at most `most` blocks, evenly spread (0: on all), and their mean, each source counting once.

    `whole`: full blocks only, as validation and the final evaluation choose them.
    """
    lengths = np.array([len(data) for data in model.tokenizer.token_bytes])
    chosen = {source: _choose(source, len(ids), model.shape.context, most, whole) for source, ids in sources.items()}
    total = sum(len(blocks) for blocks in chosen.values())
    progress = Progress("eval", total, "blocks")
    rows: dict[str, dict[str, Any]] = {}
    done = 0
    for source, blocks in chosen.items():
        nats, tokens, size = [], 0, 0
        for start in range(0, len(blocks), GROUP):
            part, valid = _cut(sources[source], blocks[start : start + GROUP], model.shape.context)
            nats.append(float(engine.losses(part)[valid].sum(dtype=np.float64)))
            tokens, size = tokens + int(valid.sum()), size + int(lengths[part[:, 1:][valid]].sum())
            done += len(part)
            progress.update(done, source)
        rows[source] = {"tokens": tokens, "bytes": size, **_rates(source, math.fsum(nats), tokens, size)}
    progress.close()
    mean = {
        key: math.fsum(row[key] for row in rows.values()) / len(rows) for key in ("nats_per_token", "bits_per_byte")
    }
    facts = {"model": model.name, "step": model.step, "engine": engine.describe(), "most_blocks": most}
    return {**facts, "sources": rows, "mean": {**mean, "perplexity": _perplexity(mean["nats_per_token"])}}


def table(result: Mapping[str, Any]) -> str:
    """The result for people."""
    rows = dict(result["sources"])
    if len(rows) > 1:
        rows["mean"] = {"tokens": "", "bytes": "", **result["mean"]}
    keys = ("tokens", "bytes", "nats_per_token", "perplexity", "bits_per_byte")
    lines = [["source", *(key.replace("_", " ") for key in keys)]]
    lines += [[name, *(_cell(row[key]) for key in keys)] for name, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keys) + 1)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _held_out(model: Model, folder: Path) -> dict[str, Ids]:
    sources = Checked.read(folder / "manifest.json", "the tokens manifest").child("sources")
    if not sources.value or not all(_is_name(name) for name in sources.value):
        raise DataError(f"{sources.path} must name sources", got=list(sources.value)[:5], fix="run the tokens stage")
    return {name: _open(folder / f"{name}.heldout.btok", model.tokenizer) for name in sources.value}


def _is_name(name: str) -> bool:
    return Path(name).name == name and name.isprintable()  # surrogates and NUL are not


def _open(path: Path, tokenizer: Tokenizer) -> Ids:
    found = open_btok(path)
    if found.tokenizer_sha256 != tokenizer.sha256:
        raise DataError(
            f"{path} must be made with the model's tokenizer, sha256 {tokenizer.sha256[:12]}...",
            got=f"vocabulary {found.vocab_size:,}, sha256 {found.tokenizer_sha256[:12]}...",
            fix="give the text itself (.jsonl or .txt): it is encoded with the right one",
        )
    return found.tokens


def _choose(source: str, tokens: int, context: int, most: int, whole: bool) -> NDArray[np.int64]:
    """Numbers of the blocks that are read."""
    if tokens < 2:
        raise DataError(f"{source} must hold two tokens or more", got=tokens, fix="give it more text")
    full = (tokens - 1) // context
    count = full if whole and full else -(-(tokens - 1) // context)
    if not 0 < most < count:
        return np.arange(count)
    return ((np.arange(most) + 0.5) * count / most).astype(np.int64)


def _cut(ids: Ids, blocks: NDArray[np.int64], context: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Blocks (N, T+1), filled up with BOS, and which of their targets (N, T) are text."""
    made = np.full((len(blocks), context + 1), BOS, np.int32)
    valid = np.zeros((len(blocks), context), np.bool_)
    for row, block in enumerate(blocks.tolist()):
        piece = ids[block * context : (block + 1) * context + 1]
        made[row, : len(piece)] = piece
        valid[row, : len(piece) - 1] = True
    return made, valid


def _rates(source: str, nats: float, tokens: int, size: int) -> Rates:
    if not math.isfinite(nats):
        raise DataError(f"the losses on {source} must be finite", got=nats, fix="use another checkpoint of the model")
    found = rates(nats, tokens, size)
    return {**found, "perplexity": _perplexity(found["nats_per_token"])}


def _perplexity(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # no larger number fits
