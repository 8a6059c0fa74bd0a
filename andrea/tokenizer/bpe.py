"""Byte-level BPE: pairs of tokens merged in the order of their frequency, learned by the `tokenizers` library.

Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units", over bytes as in GPT-2.

Unusual: text is cut by our own expression and not by GPT-2's, which would join the space of a chat mark to the word
behind it; a prompt that ends in a mark would then be cut otherwise than in training. A token here never crosses the
ends of a mark, and combining signs stay with their letters.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from andrea.errors import DataError
from andrea.tokenizer.ids import BYTES, spell, unspell

# In Oniguruma's dialect. White space leaves its last character to the next piece, and a mark its line end.
PIECES = (
    r"(?:\A|\n)[<>] "
    r"|'(?:s|t|re|ve|m|ll|d)"
    r"| ?[\p{L}\p{M}]+"
    r"| ?\p{N}+"
    r"| ?[^\s\p{L}\p{M}\p{N}]+"
    r"|(?:(?!\n[<>] )\s)+(?!\S)"
    r"|\s"
)

Merge = tuple[bytes, bytes]


def train(texts: Iterable[str], *, segments: int, max_segment_bytes: int, min_count: int) -> list[Merge]:
    """Merges that make exactly `segments` tokens beyond the bytes. Raises DataError when `texts` hold fewer."""
    merges = learn(texts, segments=segments, max_segment_bytes=max_segment_bytes, min_count=min_count)
    made = len(results(merges))
    if made < segments:
        raise DataError(
            f"the training sample must hold {segments:,} merges that occur at least {min_count} times",
            got=f"{made:,} merges",
            fix=f"set tokenizer.segments to {made:,} or less, lower tokenizer.min_count, "
            "or give it more text (tokenizer.sample_bytes, or more sources)",
        )
    return merges


def learn(texts: Iterable[str], *, segments: int, max_segment_bytes: int, min_count: int) -> list[Merge]:
    """As `train`, but with as many merges as `texts` hold. The same bytes on every machine and thread count."""
    import json

    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=BYTES + segments,
        min_frequency=min_count,
        max_token_length=max_segment_bytes,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    learned: Sequence[Sequence[str]] = json.loads(model.to_str())["model"]["merges"]
    return [(unspell(left), unspell(right)) for left, right in learned]


def results(merges: Iterable[Merge]) -> list[bytes]:
    """The tokens that `merges` make, each once, in order: ids from 257."""
    return list(dict.fromkeys(left + right for left, right in merges))


def encoder(document: dict[str, Any]) -> Any:
    """The `tokenizers` object of a tokenizer.json, with BOS written in a text encoded as that text."""
    import json

    from tokenizers import Tokenizer

    model = Tokenizer.from_str(json.dumps(document))
    model.encode_special_tokens = True
    return model


def spelled(merges: Iterable[Merge]) -> list[list[str]]:
    """The merges as they stand in a tokenizer.json."""
    return [[spell(left), spell(right)] for left, right in merges]
