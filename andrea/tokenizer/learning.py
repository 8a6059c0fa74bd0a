"""From texts to a tokenizer of either kind, as the experiment's `tokenizer` section says."""

from collections.abc import Sequence

from andrea.experiment import TokenizerSpec
from andrea.tokenizer import bpe, harris
from andrea.tokenizer.exported import Learned, from_merges, from_segments


def train(texts: Sequence[str], spec: TokenizerSpec) -> Learned:
    """Exactly `spec.segments` segments. Raises DataError when `texts` do not hold so many."""
    sizes = {"segments": spec.segments, "max_segment_bytes": spec.max_segment_bytes, "min_count": spec.min_count}
    return (
        from_segments(harris.train(texts, **sizes)) if spec.kind == "harris" else from_merges(bpe.train(texts, **sizes))
    )


def segments_in(texts: Sequence[str], spec: TokenizerSpec) -> set[bytes]:
    """The segments that `texts` would give, at most `spec.segments`."""
    sizes = {"segments": spec.segments, "max_segment_bytes": spec.max_segment_bytes, "min_count": spec.min_count}
    if spec.kind == "harris":
        return set(harris.learn(texts, **sizes))
    return set(bpe.results(bpe.learn(texts, **sizes)))
