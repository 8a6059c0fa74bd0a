"""What a tokenizer is worth, in numbers: held-out text per token, segments in use, and what the sample decided.

Bytes per token are measured on held-out text, per source and for the training mix (the mean by training weight: a
step draws its tokens from one source).

Overlap: the share of the segments that another sample gives too. A tokenizer learned on the raw head of a corpus can
spend most of its segments on text that training then leaves out. The other samples are small, so the training mix at
the same small size is among them: its overlap is what mere size costs, and the others are to be read against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from andrea.experiment import Experiment
from andrea.tokenizer.codec import Tokenizer
from andrea.tokenizer.corpus import Corpus, head, n_bytes, spread
from andrea.tokenizer.ids import FIRST_SEGMENT
from andrea.tokenizer.learning import segments_in

HELDOUT_BYTES = 1_000_000  # per source
_OVERLAP_BYTES = 1_000_000  # of each other sample, at least
_OVERLAP_BYTES_EACH = 500  # and per segment

Sample = Mapping[str, Sequence[str]]  # source -> texts


def report(experiment: Experiment, corpus: Corpus, sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of report.json."""
    return {
        "kind": tokenizer.kind,
        "segments": experiment.tokenizer.segments,
        "vocab_size": tokenizer.vocab_size,
        "sha256": tokenizer.sha256,
        "sample": {
            "bytes": sum(n_bytes(texts) for texts in sample.values()),
            "sources": {name: {"documents": len(t), "bytes": n_bytes(t)} for name, t in sample.items()},
        },
        **_heldout(experiment, corpus, tokenizer),
        "overlap": _overlap(experiment, corpus, sample, tokenizer),
    }


def _heldout(experiment: Experiment, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
    """Bytes per token and the share of segments that occur, on up to HELDOUT_BYTES of each source."""
    rates: dict[str, float] = {}
    used: dict[str, set[int]] = {}
    for source, splits in corpus.items():
        split = splits["heldout"]
        texts = spread(split.read(), split.bytes, HELDOUT_BYTES)
        encoded = [ids.tolist() for ids in tokenizer.encode_many(texts)]
        rates[source] = n_bytes(texts) / max(1, sum(map(len, encoded)))
        used[source] = {number for ids in encoded for number in ids if number >= FIRST_SEGMENT}
    weights = experiment.firehose.weights
    mix = sum(weights[source] * rate for source, rate in rates.items()) / sum(weights.values())
    n_segments = tokenizer.vocab_size - FIRST_SEGMENT
    return {
        "bytes_per_token": {"mix": _round(mix), "sources": {name: _round(rate) for name, rate in rates.items()}},
        "segments_used": {
            "all": _round(len(set().union(*used.values())) / n_segments),
            "sources": {name: _round(len(numbers) / n_segments) for name, numbers in used.items()},
        },
    }


def _overlap(experiment: Experiment, corpus: Corpus, sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    spec = experiment.tokenizer
    wanted = min(spec.sample_bytes, max(_OVERLAP_BYTES, _OVERLAP_BYTES_EACH * spec.segments))
    ours = set(tokenizer.learned.segments)

    def share(texts: Iterable[str]) -> float:
        return _round(len(ours & segments_in(list(texts), spec)) / len(ours))

    mixed = [text for texts in sample.values() for text in texts]
    return {
        "bytes": wanted,
        "mix": share(spread(mixed, n_bytes(mixed), wanted)),
        "head": share(head(corpus, wanted)),
        "sources": {source: share(_alone(corpus, sample, source, wanted)) for source in corpus},
    }


def _alone(corpus: Corpus, sample: Sample, source: str, wanted: int) -> list[str]:
    """Text of one source; from the sample if that has enough, for a large file takes long to read."""
    size = n_bytes(sample[source])
    if size >= wanted:
        return spread(sample[source], size, wanted)
    split = corpus[source]["train"]
    return spread(split.read(), split.bytes, wanted)


def _round(number: float) -> float:
    return round(number, 4)
