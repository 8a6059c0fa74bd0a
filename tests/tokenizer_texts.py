"""Text for the tests of tokenizers: made conversations with real morphology, and strings that break encoders."""

import json
import random
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from andrea.experiment import Experiment
from andrea.files import write_json
from andrea.megachat import Writer

TINY = Path(__file__).resolve().parent.parent / "experiments" / "ANDREA-TINY-TRAIN.json"

PREFIXES = ["", "", "", "un", "re", "pre", "over"]
STEMS = (
    "believ know read play talk walk think work help turn paint build cook clean start open call view load form".split()
)
SUFFIXES = ["", "", "ing", "able", "ed", "er", "s", "ly", "ness"]
SMALL = "the a of to and in I you it is that we they was for on don't can't what how".split()


def conversations(count: int, seed: int = 1) -> list[str]:
    """`count` documents of megachat text; the same seed gives the same ones."""
    draw = random.Random(seed)

    def some(words: list[str]) -> str:
        return words[int(len(words) * draw.random() ** 2)]  # the first ones are frequent

    def word() -> str:
        return some(SMALL) if draw.random() < 0.5 else some(PREFIXES) + some(STEMS) + some(SUFFIXES)

    def turn(mark: str) -> str:
        return mark + " ".join(word() for _ in range(draw.randint(3, 14))) + draw.choice([".", "?", "!", "..."])

    return ["\n".join(turn("> <"[2 * (n % 2)] + " ") for n in range(draw.randint(2, 8))) for _ in range(count)]


SPECIAL = [
    "<|bos|>",
    "<unk>",
    "\n> ",
    "\n< ",
    "> ",
    "< ",
    "\n<",
    "<",
    "\r\n",
    "\u2028",
    "\x00",
    "\x1e",
    "\x10",
    " ",
    "  ",
    "\n",
]
WIDE = [
    "👩‍💻",
    "🏳️‍🌈",
    "🇩🇪",
    "e\u0301",
    "ﬁ",
    "Ġ",
    "Ċ",
    "ß",
    "한국어",
    "हिन्दी",
    "日本語",
    "ไทย",
    "\ufeff",
    "\ufffd",
    "\U0010ffff",
]
PIECES = st.sampled_from([*SPECIAL, *WIDE, " the", "ing", " believ", "don't", "a" * 70])
ANY_TEXT = st.lists(PIECES | st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=30).map("".join)


def experiment(changes: dict[str, Any]) -> Experiment:
    """The tiny experiment with values at dotted paths replaced."""
    data = json.loads(TINY.read_text())
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = data
        for key in parents:
            place = place[key]
        place[last] = value
    return Experiment.from_json(data, TINY)


def write_megachat(folder: Path, sources: dict[str, dict[str, list[str]]]) -> None:
    """The files and the part of the manifest that the tokenizer and tokens stages read."""
    manifest: dict[str, Any] = {}
    for source, splits in sources.items():
        manifest[source] = {}
        for split, texts in splits.items():
            with Writer(folder / f"{source}.{split}.txt.zst") as writer:
                for text in texts:
                    writer.add(text)
            facts = {"file": writer.path.name, "sha256": writer.sha256}
            manifest[source][split] = facts | {"documents": writer.documents, "bytes": writer.bytes}
    write_json(folder / "manifest.json", {"sources": manifest})
