"""The tokens stage: the megachat as token ids, one .btok file a source and split, and a manifest with its counts.

`bytes` in the manifest is the UTF-8 of the documents, marks included: with the tokens it gives bits per byte.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea import btok
from andrea.errors import DataError
from andrea.experiment import Experiment
from andrea.files import require_free, sha256_file, storing, write_json
from andrea.progress import Progress
from andrea.tokenizer import Tokenizer, load
from andrea.tokenizer.corpus import SPLITS, Corpus, Split, open_corpus

MANIFEST = "manifest.json"
_OURS = re.compile(r"[a-z0-9-]+\.(train|heldout)\.btok")


def encode_corpus(
    experiment: Experiment, megachat_dir: Path, tokenizer_path: Path, out_dir: Path, threads: int
) -> None:
    """Write `<source>.<train|heldout>.btok` for every source by `threads` processes, then manifest.json.

    Every document begins with BOS. The bytes do not depend on `threads`. Raises DataError for a tokenizer of another
    size, a megachat that is not the experiment's, and a source too short for one block of model.context + 1 tokens;
    StorageError when the disk refuses or is too small.
    """
    tokenizer = load(tokenizer_path)
    _check_vocabulary(experiment, tokenizer, tokenizer_path)
    corpus = open_corpus(experiment, megachat_dir)
    with storing(out_dir):
        (out_dir / MANIFEST).unlink(missing_ok=True)
    require_free(out_dir, sum(split.bytes for splits in corpus.values() for split in splits.values()), "the tokens")
    work = _Work(experiment, tokenizer, out_dir, threads, corpus)
    sources = {
        source: {name: work.encode(source, name, split) for name, split in splits.items()}
        for source, splits in corpus.items()
    }
    work.progress.close()
    facts = {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, "sources": sources}
    write_json(out_dir / MANIFEST, facts)
    _remove_stale(experiment, out_dir)


class _Work:
    """One run over the corpus, with its progress line."""

    def __init__(
        self, experiment: Experiment, tokenizer: Tokenizer, out_dir: Path, threads: int, corpus: Corpus
    ) -> None:
        self.context, self.tokenizer, self.out_dir, self.threads = experiment.model.context, tokenizer, out_dir, threads
        total = sum(split.bytes for splits in corpus.values() for split in splits.values())
        self.progress = Progress("tokens", total, "bytes")
        self.bytes = 0

    def encode(self, source: str, name: str, split: Split) -> dict[str, Any]:
        """Write one token file; returns its part of the manifest."""
        path = self.out_dir / f"{source}.{name}.btok"
        before = self.bytes
        counts = btok.write(
            path,
            self.tokenizer.encode_many(self._read(source, split), self.threads, bos=True),
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_sha256=self.tokenizer.sha256,
        )
        self._check_length(source, name, counts)
        return {
            "file": path.name,
            "sha256": sha256_file(path),
            "documents": counts.documents,
            "tokens": counts.tokens,
            "bytes": self.bytes - before,
        }

    def _read(self, source: str, split: Split) -> Iterator[str]:
        for text in split.read():
            self.bytes += len(text.encode())
            self.progress.update(self.bytes, source)
            yield text

    def _check_length(self, source: str, name: str, counts: btok.Counts) -> None:
        """Training or validation would find no block to read, much later."""
        if counts.tokens <= self.context:
            more = "give it more text" if name == "train" else "raise megachat.heldout_fraction, give it more text"
            raise DataError(
                f'the {name} split of the source "{source}" must hold one block: {self.context + 1:,} tokens '
                "(model.context + 1)",
                got=f"{counts.tokens:,} tokens in {counts.documents:,} documents",
                fix=f"{more}, lower model.context, or take the source out of the experiment",
            )


def _check_vocabulary(experiment: Experiment, tokenizer: Tokenizer, path: Path) -> None:
    if tokenizer.vocab_size != experiment.vocab_size or tokenizer.kind != experiment.tokenizer.kind:
        spec = experiment.tokenizer
        raise DataError(
            f"{path} must be the experiment's tokenizer: {spec.kind}, vocabulary {experiment.vocab_size:,}",
            got=f"{tokenizer.kind}, vocabulary {tokenizer.vocab_size:,}",
            fix="delete it and run the tokenizer stage again",
        )


def _remove_stale(experiment: Experiment, out_dir: Path) -> None:
    """Files of sources that the experiment no longer names."""
    current = {f"{source}.{split}.btok" for source in experiment.sources for split in SPLITS}
    with storing(out_dir):
        for path in out_dir.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in current:
                path.unlink()
