"""How fast text becomes token ids: Harris segments (ours) against byte-level BPE (the `tokenizers` library).

    python benchmarks/tokenize_speed.py [--segments 2048] [--processes 2] [--rounds 5] [--megabytes 24]

Both have the same vocabulary size, learned on the same text, chitchat, and encode that text with the same number of
processes (ours) or threads (theirs), in turns, so that other work on the machine meets both alike. The library runs
as is usual: GPT-2's expression, `encode_batch` and `encode_batch_fast` in batches of 1,000 documents, the best size
measured. Printed are medians, in MB of text a second; wanted is a ratio of 1.0 or more. Learning is timed too.
With one process the clock is that of the CPU, which other work on the machine does not move.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from andrea import megachat
from andrea.sources import chitchat
from andrea.sources.catalogue import find_dataset
from andrea.tokenizer import Tokenizer, harris
from andrea.tokenizer.exported import from_segments

BATCH = 1000


def chat(megabytes: float) -> list[str]:
    """Chitchat in megachat form, several times over if need be."""
    items = chitchat.feed(find_dataset("chitchat")).items
    texts = [megachat.encode(item.parsed.document) for item in items if item.parsed is not None]
    size = sum(len(text.encode()) for text in texts)
    return texts * max(1, round(megabytes * 1e6 / size))


def library_bpe(texts: list[str], segments: int) -> Any:
    """BPE as the library's own documentation makes it."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    model = Library(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=segments + 257,
        special_tokens=["<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    model.encode_special_tokens = True
    return model


def in_batches(encode: Callable[[list[str]], Any], texts: list[str]) -> int:
    """Tokens of all texts."""
    starts = range(0, len(texts), BATCH)
    return sum(len(encoding.ids) for start in starts for encoding in encode(texts[start : start + BATCH]))


def timed(clock: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any]:
    began = clock()
    result = work()
    return clock() - began, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=2048)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=24)
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(args.processes)  # read when the library starts its threads

    clock = time.process_time if args.processes == 1 else time.perf_counter

    texts = chat(args.megabytes)
    size = sum(len(text.encode()) for text in texts)
    learning, segments = timed(
        clock, lambda: harris.train(texts, segments=args.segments, max_segment_bytes=24, min_count=8)
    )
    ours = Tokenizer(from_segments(segments), "")
    library_learning, theirs = timed(clock, lambda: library_bpe(texts, args.segments))
    print(f"{size / 1e6:.1f} MB, {len(texts):,} documents, vocabulary {ours.vocab_size:,}, {args.processes} processes")
    print(f"learning: Harris {learning:.1f} s, BPE {library_learning:.1f} s")

    ways: dict[str, Callable[[], int]] = {
        "Harris": lambda: sum(map(len, ours.encode_many(texts, args.processes))),
        "BPE encode_batch": lambda: in_batches(theirs.encode_batch, texts),
        "BPE encode_batch_fast": lambda: in_batches(theirs.encode_batch_fast, texts),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tokens: dict[str, int] = {}
    for _ in range(args.rounds):
        for name, work in ways.items():
            took, tokens[name] = timed(clock, work)
            seconds[name].append(took)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        rate, spread = size / median / 1e6, (size / max(seconds[name]) / 1e6, size / min(seconds[name]) / 1e6)
        print(
            f"{name:22} {rate:6.2f} MB/s ({spread[0]:.2f} to {spread[1]:.2f})  {tokens[name] / median / 1e6:.2f} M tokens/s  "
            f"{size / tokens[name]:.3f} bytes/token"
        )
    for name in list(ways)[1:]:
        print(f"ratio to {name}: {medians[name] / medians['Harris']:.2f}")


if __name__ == "__main__":
    main()
