"""Samples: how prompts become tokens, where the shown text ends, and what is refused early."""

from pathlib import Path
from typing import Any

import pytest
from tiny_run import NAME, experiment_json, make_project

from andrea import tokenizer
from andrea.errors import ExperimentError
from andrea.experiment import Experiment
from andrea.sampling import Sampler
from andrea.tokenizer import Tokenizer


@pytest.fixture
def words(tmp_path: Path) -> Tokenizer:
    make_project(tmp_path)
    return tokenizer.load(tmp_path / "data" / NAME / "tokenizer" / "tokenizer.json")


def sampler(words: Tokenizer, *prompts: str, context: int = 64) -> Sampler:
    value = experiment_json(samples__prompts=list(prompts), model__context=context)
    return Sampler(Experiment.from_json(value, "x"), words)


class Parrot:
    """Answers with given ids."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)

    def begin_generate(self, *_: Any) -> Any:
        return lambda: self.answers


def answered(words: Tokenizer, prompt: str, ids: list[int]) -> dict[str, Any]:
    engine: Any = Parrot(ids)
    return sampler(words, prompt).sample(engine, 7)[0]


def test_a_prompt_is_a_user_turn_and_ends_where_the_reply_begins(words: Tokenizer) -> None:
    """A missing mark or BOS makes the model continue the user's turn."""
    (ids,) = sampler(words, "what the").prompts
    assert ids[0] == words.bos
    assert words.decode(ids) == "> what the\n< "


def test_an_empty_prompt_is_bos_alone(words: Tokenizer) -> None:
    """The model begins by itself."""
    assert sampler(words, "").prompts == [[words.bos]]


def test_the_text_ends_with_the_reply_and_raw_does_not(words: Tokenizer) -> None:
    """The next user turn is not part of the answer; a following document is not either."""
    ids = words.encode("yes\nand no\n> more\n< x").tolist()
    record = answered(words, "hi", ids)
    assert record == {
        "step": 7,
        "prompt": "hi",
        "text": "yes\nand no",
        "raw": "yes\nand no\n> more\n< x",
        "tokens": len(ids),
    }
    record = answered(words, "hi", [*words.encode("ok").tolist(), words.bos, *words.encode("> new").tolist()])
    assert record["text"] == "ok"
    assert record["raw"] == "ok\n\x1e\n> new"
    assert record["tokens"] == 2 + 1 + 5


def test_a_document_that_the_model_begins_is_shown_whole(words: Tokenizer) -> None:
    """Its turns are the sample."""
    assert answered(words, "", words.encode("> a\n< b\n> c").tolist())["text"] == "> a\n< b\n> c"


def test_cut_characters_are_shown_as_such(words: Tokenizer) -> None:
    """A sample may end inside a character."""
    assert answered(words, "hi", words.encode("é").tolist()[:1])["text"] == "\ufffd"


def test_a_prompt_that_does_not_fit_is_refused_at_once(words: Tokenizer) -> None:
    """The engine would refuse it only at the first samples, hours later."""
    sampler(words, "x" * 59)
    with pytest.raises(ExperimentError, match="leave room in the context of 64"):
        sampler(words, "x" * 60)
