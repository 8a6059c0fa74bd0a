"""An export in the library that it is for. Skipped without torch and transformers, which training has no use for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_model import opened

from andrea.engine import Choice
from andrea.export import export
from andrea.export.card import USE
from andrea.megachat import Turn
from andrea.talk.history import prompt_ids

torch = pytest.importorskip("torch", reason="needs torch, which is not installed: pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="needs transformers, which is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend

PROMPTS = ["Hello", "what the\n> x\n\x10 é日本🙂", "<", "\r\n\t \u2028a   b"]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our model and engine, their model and tokenizer, and the folder between them."""
    root: Path = tmp_path_factory.mktemp("export")
    model, engine = opened(root, model__tied_head=request.param, model__context=64)
    export(model, root / "out", root)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(root / "out", local_files_only=True)
    words = transformers.AutoTokenizer.from_pretrained(root / "out", local_files_only=True)
    return model, engine, theirs, words, root / "out"


def test_logits_agree(both: Any) -> None:
    """In float32, at every length: a transposed matrix, another GELU or epsilon shows here."""
    model, engine, theirs, _, _ = both
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    for prompt in PROMPTS:
        ids = prompt_ids(model.tokenizer, [Turn("user", prompt)])
        with torch.no_grad():
            want = theirs(torch.tensor([ids])).logits[0, -1].numpy()
        difference = np.abs(engine._generator._prefill(ids) - want).max()
        assert difference < 1e-4 and np.abs(want).max() > 1, f"{prompt!r}: {difference}"


def test_greedy_text_agrees(both: Any) -> None:
    """Token by token, with their cache and ours."""
    model, engine, theirs, _, _ = both
    for prompt in PROMPTS:
        ids = prompt_ids(model.tokenizer, [Turn("user", prompt)])
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        made = theirs.generate(**inputs, do_sample=False, max_new_tokens=20, eos_token_id=None)
        assert made[0, len(ids) :].tolist() == list(engine.stream(ids, 20, Choice(0.0, 0), 1, 0))


def test_the_tokenizer_gives_our_ids(both: Any) -> None:
    """Alone without BOS, as a conversation with it; text that spells BOS is text when it is asked for as such."""
    model, _, _, words, _ = both
    for prompt in PROMPTS:
        ids = words(prompt)["input_ids"]
        assert ids == model.tokenizer.encode(prompt).tolist() and words.decode(ids) == prompt
        chat = [{"role": "user", "content": prompt}]
        got = words.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert got == prompt_ids(model.tokenizer, [Turn("user", prompt)])
    assert words("<|bos|>a")["input_ids"] == [256, 97]
    spelled = words("<|bos|>a", split_special_tokens=True)["input_ids"]
    assert spelled == model.tokenizer.encode("<|bos|>a").tolist()
    assert (words.bos_token_id, words.eos_token_id, len(words)) == (256, 256, model.tokenizer.vocab_size)


def test_the_cards_example_runs(both: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is what people copy."""
    _, _, _, _, folder = both
    (example,) = USE.split("```python\n")[1:]
    code = example.split("```")[0].replace("FOLDER", str(folder))
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102
    assert "\n> " not in capsys.readouterr().out
    assert names["made"].shape[1] > names["inputs"]["input_ids"].shape[1]
