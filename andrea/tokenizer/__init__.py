"""Text <-> token ids: Harris segments or byte-level BPE, learned from the training mix, kept as a tokenizer.json."""

from andrea.tokenizer.codec import Tokenizer, load
from andrea.tokenizer.ids import BOS

__all__ = ["BOS", "Tokenizer", "load"]
