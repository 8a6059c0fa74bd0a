"""Measuring a model on a text: every target counts once, and a text of any length can be measured."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tiny_run import NAME, make_project
from trained_model import SIZES, opened

from andrea import btok, evaluate
from andrea.btok import Btok
from andrea.errors import DataError
from andrea.talk import measure
from andrea.talk.measure import corpora, table


def test_full_blocks_are_what_validation_measures(tmp_path: Path) -> None:
    """The two figures stand side by side in a report, so they must mean the same."""
    model, engine = opened(tmp_path)
    ids = np.random.default_rng(1).integers(0, 250, 10 * 32 + 1).astype(np.uint16)
    held = evaluate.hold_out("x", Btok(ids, np.array([0]), 260, ""), 32, 100, model.tokenizer.token_bytes)
    nats = float(engine.losses(held.blocks).sum(dtype=np.float64))
    got = measure.evaluate(model, engine, {"x": ids}, 0)["sources"]["x"]
    assert (got["tokens"], got["bytes"]) == (held.tokens, held.bytes)
    for key, value in held.rates(nats).items():
        assert got[key] == pytest.approx(value, rel=1e-6)
    assert got["perplexity"] == pytest.approx(math.exp(got["nats_per_token"]))


@pytest.mark.parametrize("length", [2, 20, 33, 34, 70])
def test_a_last_block_that_is_not_full_counts(length: int, tmp_path: Path) -> None:
    """A user's text is hardly ever a multiple of the context; what fills it up must not count."""
    model, engine = opened(tmp_path)
    ids = np.random.default_rng(1).integers(0, 250, length).astype(np.uint16)
    got = measure.evaluate(model, engine, {"x": ids}, 0)["sources"]["x"]
    want = 0.0
    for start in range(0, length - 1, 32):
        piece = ids[start : start + 33].astype(np.int32)
        block = np.full((1, 33), 7, np.int32)
        block[0, : len(piece)] = piece
        want += float(engine.losses(block)[0, : len(piece) - 1].sum(dtype=np.float64))
    assert got["tokens"] == got["bytes"] == length - 1
    assert got["nats_per_token"] == pytest.approx(want / (length - 1), rel=1e-6)


def test_part_of_a_text_is_spread_over_it(tmp_path: Path) -> None:
    """The head of a corpus is not the corpus."""
    model, engine = opened(tmp_path)
    ids = np.zeros(100 * 32 + 1, np.uint16)
    assert measure.evaluate(model, engine, {"x": ids}, 4)["sources"]["x"]["tokens"] == 4 * 32
    assert measure._choose("x", len(ids), 32, 4, False).tolist() == [12, 37, 62, 87]
    assert len(measure._choose("x", len(ids), 32, 1000, False)) == 100


@pytest.mark.parametrize("most", [4, 100])
def test_held_out_blocks_are_those_of_the_final_evaluation(most: int, tmp_path: Path) -> None:
    """Training said 1.741 at its end, and eval another number of the same model and the same text."""
    model, engine = opened(tmp_path, validation__blocks=1)
    ids = np.random.default_rng(1).integers(0, 250, 10 * 32 + 20).astype(np.uint16)
    held = evaluate.hold_out("x", Btok(ids, np.array([0]), 260, ""), 32, most, model.tokenizer.token_bytes)
    blocks, valid = measure._cut(ids, measure._choose("x", len(ids), 32, most, True), 32)
    assert blocks.tolist() == held.blocks.tolist() and valid.all()
    got = measure.evaluate(model, engine, {"x": ids}, most, whole=True)["sources"]["x"]
    assert got["tokens"] == held.tokens
    assert measure.final_blocks(model) == evaluate.MORE_BLOCKS


def test_corpora_of_every_kind(tmp_path: Path) -> None:
    """The user's own text goes through the converter that training uses for it."""
    model, engine = opened(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\ufeffthe cat")
    (folder / "b.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}) + "\n")
    (folder / "c.csv").write_text("left out")
    encoded = [model.tokenizer.encode(text).tolist() for text in ("the cat", "> x")]
    both = [256, *encoded[0], 256, *encoded[1]]
    assert {k: v.tolist() for k, v in corpora(model, folder, tmp_path, 1).items()} == {"texts": both}
    assert corpora(model, folder / "a.txt", tmp_path, 1)["a.txt"].tolist() == both[: len(encoded[0]) + 1]
    result = measure.evaluate(model, engine, corpora(model, folder, tmp_path, 1), 0)
    assert result["sources"]["texts"]["bytes"] == len("the cat> x")
    assert "bits per byte" in table(result) and "mean" not in table(result)


def test_the_experiments_own_held_out_text(tmp_path: Path) -> None:
    """Both sources and their mean; what was made with another tokenizer is refused."""
    make_project(tmp_path, **SIZES)
    model, engine = opened(tmp_path)
    sources = corpora(model, None, tmp_path, 1)
    result = measure.evaluate(model, engine, sources, 0)
    rates = [row["bits_per_byte"] for row in result["sources"].values()]
    assert list(result["sources"]) == ["alpha", "beta"]
    assert result["mean"]["bits_per_byte"] == pytest.approx(sum(rates) / 2)
    assert table(result).splitlines()[-1].startswith("mean")
    path = tmp_path / "data" / NAME / "tokens" / "beta.heldout.btok"
    assert corpora(model, path, tmp_path, 1)["beta.heldout"].tolist() == sources["beta"].tolist()
    btok.write(path, [np.array([256, 1], np.uint16)], vocab_size=260, tokenizer_sha256="0" * 64)
    with pytest.raises(DataError, match="made with the model's tokenizer"):
        corpora(model, path, tmp_path, 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "must be a .btok, .jsonl or .txt file"),
        ("x.csv", b"a", "must be a .btok, .jsonl or .txt file"),
        ("x.txt", b" \n", "must hold text"),
        ("x.txt", b"\xff", "must be UTF-8"),
        ("x.jsonl", b"{}\n", "line 1"),
        ("x.btok", b"no", "whole token file"),
    ],
)
def test_bad_corpora(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    """Each mistake by its name."""
    model, _ = opened(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        corpora(model, tmp_path / name, tmp_path, 1)


def test_losses_that_are_not_finite(tmp_path: Path) -> None:
    """NaN in a table looks like a result."""
    model, engine = opened(tmp_path)
    engine.take(np.full_like(model.weights, 1e30))
    with pytest.raises(DataError, match="must be finite"):
        measure.evaluate(model, engine, {"x": np.zeros(9, np.uint16)}, 0)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "../x", "a\x1bb"])
def test_sources_that_are_no_names(name: str, tmp_path: Path) -> None:
    """A manifest may say anything; NUL and surrogates were tracebacks of open()."""
    make_project(tmp_path, **SIZES)
    model, _ = opened(tmp_path)
    (tmp_path / "data" / NAME / "tokens" / "manifest.json").write_text(json.dumps({"sources": {name: {}}}))
    with pytest.raises(DataError, match="must name sources"):
        corpora(model, None, tmp_path, 1)
