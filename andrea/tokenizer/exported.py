"""tokenizer.json: a Hugging Face `tokenizers` file that holds all there is to know about a tokenizer of ours.

Harris: text goes through the byte alphabet, a trie expression splits it into segments and single bytes, and a word
list gives their ids. BPE: our pieces, the byte alphabet, merges. Both decode through the byte alphabet, so `decode`
of the library gives U+FFFD for a cut character, as ours does.

BOS is a special token. To the library "<|bos|>" in a text is that token; set `encode_special_tokens = True`, as we
do, and it is text.

Unusual: the file is written here and not by the library, so its bytes do not depend on the library's version. A file
is believed only if it equals, value for value, what we would write for the segments or merges found in it: then it is
our layout, and the library and our encoder give the same ids.
"""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from andrea.errors import DataError
from andrea.files import read_json
from andrea.tokenizer import bpe
from andrea.tokenizer.ids import BOS, BOS_TEXT, FIRST_SEGMENT, TO_BYTE, unspell, vocabulary
from andrea.tokenizer.pattern import json_pattern

Kind = Literal["harris", "bpe"]

MAX_FILE_BYTES = 256 << 20
MAX_SEGMENT_BYTES = 64  # as the experiment schema; bounds the depth of the trie
MAX_SEGMENTS = 1_000_000


class Learned(NamedTuple):
    """What a tokenizer.json says. `segments` in id order from 257; `merges` only for BPE; `document` is the file."""

    kind: Kind
    segments: list[bytes]
    merges: list[bpe.Merge]
    document: dict[str, Any]


def from_segments(segments: list[bytes]) -> Learned:
    """The tokenizer of Harris segments."""
    split = _split(json_pattern(segments))
    model = {"type": "WordLevel", "vocab": vocabulary(segments), "unk_token": "<unk>"}
    return Learned("harris", segments, [], _document([_byte_level(), split], model))


def from_merges(merges: list[bpe.Merge]) -> Learned:
    """The tokenizer of BPE merges."""
    segments = bpe.results(merges)
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary(segments),
        "merges": bpe.spelled(merges),
    }
    return Learned("bpe", segments, merges, _document([_split(bpe.PIECES), _byte_level()], model))


def to_bytes(document: dict[str, Any]) -> bytes:
    """The file's bytes."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _document(pre_tokenizers: list[dict[str, Any]], model: dict[str, Any]) -> dict[str, Any]:
    bos = {"id": BOS, "content": BOS_TEXT, "single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [bos | {"normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": _byte_level(),
        "model": model,
    }


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


# ---------------------------------------------------------------------------------------------------------------------


def read(path: Path) -> Learned:
    """Read a tokenizer.json of ours. Raises DataError for any other file."""
    if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
        _refuse(path, f"{path.stat().st_size:,} bytes, more than a tokenizer can have")
    document = read_json(path, "the tokenizer")
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") not in ("WordLevel", "BPE"):
        _refuse(path, "a model that is neither WordLevel (Harris) nor BPE")
    segments = _segments(path, model.get("vocab"))
    if model["type"] == "WordLevel":
        learned = from_segments(segments)
    else:
        learned = from_merges(_merges(path, model.get("merges")))
    if learned.document != document:
        place = _difference(learned.document, document)
        if place == "model":
            place = f"model.{_difference(learned.document['model'], model)}"
        _refuse(path, f"a file that differs, in {place}, from what its own segments give")
    return learned


def _segments(path: Path, vocab: object) -> list[bytes]:
    """The tokens from id 257 on; what is below them is checked by the comparison in `read`."""
    if not isinstance(vocab, dict) or not FIRST_SEGMENT <= len(vocab) <= FIRST_SEGMENT + MAX_SEGMENTS:
        _refuse(path, "no vocabulary of 256 bytes, BOS and up to a million segments")
    by_id: dict[int, str] = {}
    for text, number in vocab.items():
        if type(number) is not int or not 0 <= number < len(vocab) or number in by_id:
            _refuse(path, f"the id {number!r} for {text[:40]!r}; ids are 0 to {len(vocab) - 1:,}, each once")
        by_id[number] = text
    return [_token(path, by_id[number]) for number in range(FIRST_SEGMENT, len(vocab))]


def _token(path: Path, text: object) -> bytes:
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_SEGMENT_BYTES or not TO_BYTE.keys() >= set(text):
        _refuse(path, f"the token {str(text)[:80]!r}; tokens have 1 to {MAX_SEGMENT_BYTES} bytes in the byte alphabet")
    return unspell(text)


def _merges(path: Path, merges: object) -> list[bpe.Merge]:
    if not isinstance(merges, list) or len(merges) > 2 * MAX_SEGMENTS:
        _refuse(path, "no list of merges")
    pairs: list[bpe.Merge] = []
    for merge in merges:
        if not isinstance(merge, list) or len(merge) != 2:
            _refuse(path, f"the merge {str(merge)[:80]}; a merge is two tokens")
        pairs.append((_token(path, merge[0]), _token(path, merge[1])))
    return pairs


def _difference(ours: dict[str, Any], got: dict[str, Any]) -> str:
    """The first key whose value differs."""
    return next(str(key)[:80] for key in [*ours, *got] if key not in ours or key not in got or ours[key] != got[key])


def _refuse(path: Path, got: str) -> NoReturn:
    raise DataError(
        f"{path} must be a tokenizer that ANDREA made: bytes 0-255, BOS 256, segments from 257",
        got=got,
        fix="delete it and run the tokenizer stage again",
    )
