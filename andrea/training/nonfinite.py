"""The error for a loss or gradient that is not finite: where it came from, and what is safe."""

from collections.abc import Sequence

from andrea.batches import Batches
from andrea.checkpoint import bin_path
from andrea.errors import EngineError
from andrea.recordfile import Record
from andrea.tokenizer import Tokenizer
from andrea.training.position import Position
from andrea.training.writer import Writer

_SHOWN = 4  # documents
_HEAD = 24  # tokens of each


def nonfinite_error(
    record: Record,
    before: Sequence[str],
    position: Position,
    batches: Batches,
    tokenizer: Tokenizer,
    writer: Writer,
) -> EngineError:
    """For the step of `record`, which came after steps on the sources `before`, all since `position`."""
    source = record["source"]
    blocks = batches.blocks(source, position.pulls[source] + before.count(source))
    documents = sorted({d for block in blocks.tolist() for d in batches.documents(source, block)})
    heads = "; ".join(f"{d} {_head(batches, source, d, tokenizer)!r}" for d in documents[:_SHOWN])
    more = f" and {len(documents) - _SHOWN} more" if len(documents) > _SHOWN else ""
    kept = bin_path(writer.files.checkpoints, writer.saved) if writer.saved is not None else "none"
    return EngineError(
        f"loss and gradient norm must be finite at step {record['step']:,}, which read {source}",
        got=f"{record['nonfinite']}; documents {heads}{more}",
        fix=f"lower train.lr or raise train.warmup_steps, or drop such documents; last good checkpoint: {kept}",
    )


def _head(batches: Batches, source: str, document: int, tokenizer: Tokenizer) -> str:
    tokens = batches.tokens[source]
    first, end = tokens.offsets[document], tokens.offsets[document + 1]
    return tokenizer.decode(tokens.tokens[first + 1 : min(first + 1 + _HEAD, end)].tolist())
