"""The tokenizer stage: a sample of the megachat, weighted like the training mix -> tokenizer.json and report.json."""

import sys
import time
from pathlib import Path

from andrea.experiment import Experiment
from andrea.files import write_atomic, write_json
from andrea.tokenizer.codec import load
from andrea.tokenizer.corpus import Corpus, n_bytes, open_corpus, shares, spread
from andrea.tokenizer.exported import to_bytes
from andrea.tokenizer.learning import train
from andrea.tokenizer.report import report


def build(experiment: Experiment, megachat_dir: Path, out_dir: Path) -> None:
    """Learn the experiment's tokenizer and write it, then its report, into `out_dir`.

    The same megachat gives the same bytes. Raises DataError for a megachat that is not the experiment's and for one
    that holds too few segments; StorageError when the disk refuses.
    """
    began = time.monotonic()
    spec = experiment.tokenizer
    corpus = open_corpus(experiment, megachat_dir)
    sample = draw_sample(experiment, corpus)
    mixed = [text for texts in sample.values() for text in texts]
    _say(f"learning {spec.segments:,} segments ({spec.kind}) from {n_bytes(mixed) / 1e6:,.2f} MB")
    learned = train(mixed, spec)
    write_atomic(out_dir / "tokenizer.json", to_bytes(learned.document))
    tokenizer = load(out_dir / "tokenizer.json")
    _say(f"learned in {time.monotonic() - began:,.1f} s; measuring")
    facts = report(experiment, corpus, sample, tokenizer)
    write_json(out_dir / "report.json", facts)
    _say(f"vocabulary {tokenizer.vocab_size:,}, {facts['bytes_per_token']['mix']:.3f} bytes per token on held-out text")


def draw_sample(experiment: Experiment, corpus: Corpus) -> dict[str, list[str]]:
    """Training texts of each source, `sample_bytes` in all when there is so much, shared out by training weight."""
    available = {source: splits["train"].bytes for source, splits in corpus.items()}
    wanted = shares(available, experiment.firehose.weights, experiment.tokenizer.sample_bytes)
    return {
        source: spread(splits["train"].read(), available[source], wanted[source]) for source, splits in corpus.items()
    }


def _say(text: str) -> None:
    print(f"tokenizer: {text}", file=sys.stderr)
