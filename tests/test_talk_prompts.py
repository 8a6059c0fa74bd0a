"""A file of prompts, which somebody wrote by hand, and the lines that come back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from trained_model import opened

from andrea.engine import Choice
from andrea.errors import DataError
from andrea.talk.prompts import read_prompts, sample
from andrea.talk.reply import Settings

SETTINGS = Settings(Choice(1.0, 0, 0.95), 9, 5)


def test_txt_and_jsonl_and_their_replies(tmp_path: Path) -> None:
    """Any line can be made again alone, from the seed that it names."""
    model, engine = opened(tmp_path)
    path = tmp_path / "p.txt"
    path.write_text("\ufeffhi\r\n\n the ö\u2028x\n", encoding="utf-8")
    prompts = read_prompts(path, model)
    assert [model.tokenizer.decode(p.ids) for p in prompts] == ["> hi\n< ", ">  the ö\u2028x\n< "]
    lines = [json.loads(line) for line in sample(model, engine, SETTINGS, prompts)]
    assert [line["prompt"] for line in lines] == ["hi", " the ö\u2028x"]
    assert [line["seed"] for line in lines] == [5, 6]
    assert lines[0]["settings"]["top_p"] == 0.95 and lines[0]["settings"]["model"] == "ANDREA-MINI"
    assert all(line["ended"] in ("turn", "document", "length") and 0 < line["tokens"] <= 9 for line in lines)
    alone = [json.loads(line) for line in sample(model, engine, replace(SETTINGS, seed=6), prompts[1:])]
    assert alone == lines[1:]

    path = tmp_path / "p.jsonl"
    turns = [{"role": "user", "text": "a"}, {"role": "reply", "text": "b"}, {"role": "user", "text": "c"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    path.write_text("\n".join(map(json.dumps, ({"prompt": "hi"}, {"turns": turns}, {"messages": messages}))))
    prompts = read_prompts(path, model)
    assert [model.tokenizer.decode(p.ids) for p in prompts] == ["> hi\n< ", "> a\n< b\n> c\n< ", "> s\n\na\n< "]
    assert [p.shown for p in prompts] == ["hi", turns, "s\n\na"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.txt", b"\n  \n", "must hold a prompt"),
        ("p.jsonl", b"", "must hold a prompt"),
        ("p.txt", b"ok\n" + b"x" * 40, "leave room in the model's context of 32"),
        ("p.txt", b"\xff\xfe", "must be UTF-8"),
        ("p.csv", b"hi", "must be a .txt or .jsonl file"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": 3}', "line 2"),
        ("p.jsonl", b"[1]", "line 1"),
        ("p.jsonl", b"{", "line 1"),
        ("p.jsonl", b'{"text": "prose"}', "nothing to reply to"),
        ("p.jsonl", b'{"turns": [{"role": "reply", "text": "b"}]}', "nothing to reply to"),
        ("p.jsonl", b"[" * 100_000, "line 1"),
        ("p.jsonl", b'{"prompt": "\\ud800"}', "line 1"),
    ],
)
def test_bad_files_name_the_line(name: str, text: bytes, words: str, tmp_path: Path) -> None:
    """A traceback in line 4,711 helps nobody."""
    model, _ = opened(tmp_path)
    (tmp_path / name).write_bytes(text)
    if "ud800" in str(text):  # a lone surrogate is replaced, as in own text
        assert model.tokenizer.decode(read_prompts(tmp_path / name, model)[0].ids) == "> \ufffd\n< "
        return
    with pytest.raises(DataError) as caught:
        read_prompts(tmp_path / name, model)
    assert words in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    """And a folder of that name."""
    model, _ = opened(tmp_path)
    with pytest.raises(DataError, match="must be a readable file"):
        read_prompts(tmp_path / "p.txt", model)
    (tmp_path / "d.txt").mkdir()
    with pytest.raises(DataError, match="must be a file"):
        read_prompts(tmp_path / "d.txt", model)
