"""The synthetic chat: the same in every run, no document twice, no slot unfilled, and its facts right."""

import re
from collections import Counter
from itertools import pairwise

import pytest

from andrea.files import sha256_bytes
from andrea.megachat import Conversation, characters, encode
from andrea.sources import synthetic
from andrea.sources.synthetic import DOCUMENTS, _talk, conversation, documents
from andrea.sources.talkrows import COMPUTED, PICKED, Draw


@pytest.fixture(scope="module")
def corpus() -> list[Conversation]:
    return list(documents(DOCUMENTS))


def exchanges(corpus: list[Conversation]) -> list[tuple[str, str]]:
    return [(a.text, b.text) for d in corpus for a, b in pairwise(d.turns) if a.role == "user"]


def test_the_text_is_pinned(corpus: list[Conversation]) -> None:
    """Guards revision v1: an edit that changes the text needs a new revision in sources.yaml, and this hash anew."""
    assert (
        sha256_bytes("\0".join(map(encode, corpus)).encode())
        == "62fb814123a91c1c1d4bfda85163f0cf0126ab1c4c967a07edc14bf9bd4a4aa3"
    )


def test_documents_depend_on_their_number_alone(corpus: list[Conversation]) -> None:
    """Guards against hidden state: the last document made alone is the last document of the run."""
    assert any(conversation(DOCUMENTS - 1, attempt) == corpus[-1] for attempt in range(5))
    assert list(documents(50)) == corpus[:50]


def test_no_two_are_equal_and_they_vary(corpus: list[Conversation]) -> None:
    assert len(set(map(encode, corpus))) == DOCUMENTS == 4000
    assert sum(map(characters, corpus)) > 1_000_000
    asked = Counter(turn.text for document in corpus for turn in document.turns if turn.role == "user")
    assert len(asked) > 6000
    assert max(asked.values()) < 300


def test_every_document_is_clean(corpus: list[Conversation]) -> None:
    """Guards the tables: no unfilled slot, no leftover mark, no wrong article, turns in order and none empty."""
    for document in corpus:
        assert [turn.role for turn in document.turns] == ["user", "reply"] * (len(document.turns) // 2)
        for _, text in document.turns:
            assert text.strip() == text != ""
            assert not re.search(r"[{}|]|  |None|\b[Aa] [aeio]|\b[Aa]n [^aeiou\W]", text), text


def test_every_topic_and_wording_can_be_said() -> None:
    """Guards the rarest line: each wording of each topic is filled once, so that a misspelt slot cannot hide."""
    talk = _talk()
    assert {topic["rows"] for topic in talk["topics"].values() if "rows" in topic} == (
        set(talk["tables"]) - {"groups"} | set(COMPUTED) | set(PICKED)
    )
    for topic in talk["topics"].values():
        row = synthetic._row(Draw("test", 1), talk, topic["rows"]) if "rows" in topic else {}
        for exchange in [*topic["ask"], *topic.get("then", [])]:
            assert len(exchange) % 2 == 0
            for wording in "|".join(exchange).split("|"):
                assert "{" not in wording.format_map(synthetic._Slots(row))


def test_sums_are_right(corpus: list[Conversation]) -> None:
    """Guards the arithmetic: every equation that is written out holds."""
    found = 0
    for _, reply in exchanges(corpus):
        for a, sign, b, c in re.findall(r"(\d+) ([-+x]|plus|minus|times) (\d+) (?:=|is) (\d+)", reply):
            found += 1
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}
            names = {"plus": "+", "minus": "-", "times": "x"}
            assert value[names.get(sign, sign)] == int(c), reply
    assert found > 300


def test_names_are_remembered(corpus: list[Conversation]) -> None:
    """Guards the point of the longer documents: the name asked for at the end is the one given at the start."""
    asked = 0
    for document in corpus:
        text = [turn.text for turn in document.turns]
        for question, answer in pairwise(text):
            if re.search("my name( again)?[?]?$", question, re.IGNORECASE) and "name is" not in question:
                asked += 1
                name = re.search(r"(?:You are|you are|name is) (\w+)", answer)
                assert name is not None
                assert any(name[1].lower() in said.lower() for said in text[:3]), text
    assert asked > 300


def test_draws_are_even_and_without_repeats() -> None:
    """Guards the choices: each item comes as often as another, and `some` takes none twice."""
    draw = Draw("test", 7)
    counts = Counter(draw.below(10) for _ in range(20_000))
    assert set(counts) == set(range(10))
    assert all(abs(count - 2000) < 250 for count in counts.values())
    for _ in range(200):
        taken = draw.some("abcdef", 4)
        assert len(set(taken)) == 4
    assert {draw.between(3, 5) for _ in range(100)} == {3, 4, 5}
