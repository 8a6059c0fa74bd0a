"""An export without the library that it is for: names, shapes and values; the mathematics; and a card that files cannot spoil."""

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2.sandbox
import numpy as np
import pytest
import yaml
from tiny_run import NAME, make_project
from trained_model import SIZES, STEP, edit, make_model, opened

from andrea import megachat
from andrea.cli import main
from andrea.engine.layout import count, views
from andrea.errors import DataError, StorageError
from andrea.export import export
from andrea.export.card import fenced, line
from andrea.export.config import chat_template
from andrea.files import sha256_file
from andrea.megachat import Conversation, Turn
from andrea.talk.model import open_model
from andrea.training.finish import EVALUATION

Arrays = dict[str, Any]


def read_safetensors(path: Path) -> Arrays:
    """As the format says: a length, a JSON header, bytes without gaps."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert header.pop("__metadata__") == {"format": "pt"} and start % 8 == 0
    arrays, end = {}, 0
    for name, facts in header.items():
        first, last = facts["data_offsets"]
        assert first == end and facts["dtype"] == "F32" and last - first == 4 * math.prod(facts["shape"])
        arrays[name] = np.frombuffer(data[start + first : start + last], "<f4").reshape(facts["shape"])
        end = last
    assert start + end == len(data)
    return arrays


def gpt2_logits(config: dict[str, Any], w: Arrays, ids: list[int]) -> Any:
    """GPT-2 as it is defined, in float64, from an export alone: logits (n, V) after each of n ids."""
    heads, width, n = config["n_head"], config["n_embd"], len(ids)
    w = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in w.items()}

    def norm(x: Any, name: str) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config["layer_norm_epsilon"])
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][:n]
    for i in range(config["n_layer"]):
        parts = np.split(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=-1)
        q, k, v = (part.reshape(n, heads, width // heads).swapaxes(0, 1) for part in parts)
        scores = np.where(np.tri(n) > 0, q @ k.swapaxes(1, 2) / math.sqrt(width // heads), -np.inf)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (chances / chances.sum(-1, keepdims=True)) @ v
        x = x + linear(mixed.swapaxes(0, 1).reshape(n, width), f"h.{i}.attn.c_proj")
        a = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        a = 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
        x = x + linear(a, f"h.{i}.mlp.c_proj")
    head = w["wte.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(x, "ln_f") @ head.T


@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_mathematics(tied: bool, tmp_path: Path) -> None:
    """Every parameter once, none of the padding, and the logits of the engine."""
    model, engine = opened(tmp_path, model__tied_head=tied)
    export(model, tmp_path / "out", tmp_path)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    arrays, ours = read_safetensors(tmp_path / "out" / "model.safetensors"), views(model.weights, model.shape)
    assert ("lm_head.weight" in arrays) is not tied and config["tie_word_embeddings"] is tied
    assert config["vocab_size"] == len(arrays["transformer.wte.weight"]) == model.tokenizer.vocab_size
    biases = {n: a for n, a in arrays.items() if n.endswith("bias") and ".ln_" not in n}
    assert len(biases) == 4 * model.shape.n_layers and not any(a.any() for a in biases.values())
    assert sum(a.size for n, a in arrays.items() if n not in biases) == count(model.shape)
    assert np.array_equal(arrays["transformer.h.1.attn.c_attn.weight"][:, 24:48], ours["1.W_K"])
    assert np.array_equal(arrays["transformer.h.0.mlp.c_fc.weight"], ours["0.W_1"])
    for ids in ([256], [256, 62, 32, 104, 105, 259], list(range(200, 231))):
        got, want = engine._generator._prefill(ids), gpt2_logits(config, arrays, ids)[-1]  # type: ignore[attr-defined]
        assert np.abs(got - want).max() < 1e-4 and np.abs(want).max() > 1


def rendered(messages: list[dict[str, str]], *, ask: bool = True) -> str:
    """The chat template as the library runs it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(chat_template())
    return template.render(messages=messages, bos_token="<|bos|>", add_generation_prompt=ask)


@pytest.mark.parametrize(
    "texts",
    [["hi"], ["hi", "there", "and"], ["a\n> b\n< c", "\n\x10\x10> \n\x1e", "\n\n> x\n\x10\x1e\n<y"], ["'\"\\{{ x }}"]],
)
def test_the_chat_template_writes_megachat(texts: list[str]) -> None:
    """Also where a text holds what reads as a mark."""
    roles: Any = ("user", "reply")
    turns = [Turn(roles[n % 2], text) for n, text in enumerate(texts)]
    names = {"user": "user", "reply": "assistant"}
    messages = [{"role": names[role], "content": text} for role, text in turns]
    assert rendered(messages, ask=False) == "<|bos|>" + megachat.encode(Conversation(tuple(turns)))
    assert rendered(messages) == "<|bos|>" + megachat.encode(Conversation((*turns, Turn("reply", ""))))


def test_a_system_message_stands_in_front_of_the_users_turn() -> None:
    """As in the training text."""
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert rendered(messages) == "<|bos|>> be kind\n\nhi\n< "


def full_run(root: Path, hostile: str) -> Path:
    """A model with archive and history, whose texts are all `hostile`."""
    folder = make_model(root)
    make_project(root, **SIZES)
    archive = folder / "archive" / str(STEP)
    archive.mkdir(parents=True)
    source = dict.fromkeys(("dataset", "bucket", "revision", "licence", "provenance"), hostile)
    facts = {"sources": {"alpha": source}, "files": {"model.bin": {"sha256": sha256_file(folder / "model.bin")}}}
    (archive / "manifest.json").write_text(json.dumps(facts))
    rates = {"model": {"bits_per_byte": 1.25}, "bigram": {"bits_per_byte": 1.5}}
    (archive / EVALUATION).write_text(json.dumps({"sources": {"alpha": rates}, "mean": rates}))
    records = [{"step": step, "prompt": hostile, "text": hostile} for step in (STEP - 1, STEP)]
    (archive / f"{NAME}.samples.json").write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    run = root / "runs" / NAME
    run.mkdir(parents=True)
    (run / "fingerprint.json").write_text(json.dumps({"fingerprint": "f" * 64}))
    history = [{"step": n, "source": "alpha", "loss": None if n == 3 else 6 / n} for n in range(1, STEP + 5)]
    (run / f"{NAME}.loss.json").write_text("[\n" + ",\n".join(map(json.dumps, history)) + "\n]\n")
    edit(folder / "resolved.json", "experiment.description", hostile)
    return folder


HOSTILE = "# x\n---\nlicense: mit\n---\n<script>a</script> | [b](javascript:c) `d` ````\n~~~ \x1b[2J ![e](f) &lt; $g$"


def test_the_card_says_what_is_known_and_nothing_it_was_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data set's own text could otherwise set the licence, or run in a reader's browser."""
    export(open_model(str(full_run(tmp_path, HOSTILE))), tmp_path / "out", tmp_path)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "says nothing" not in capsys.readouterr().out
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "other"
    outside = re.sub(r"^(`{3,}).*?^\1$", "", body, flags=re.DOTALL | re.MULTILINE)
    assert "license: mit" not in re.findall(r"^.*$", outside, re.MULTILINE)
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[b\]|\x1b", body.replace(HOSTILE.replace("\x1b", "\ufffd"), ""))
    assert "| alpha | 1.250 | 1.500 |" in body and "![Training loss" in body and "| 40 |" in body
    assert outside.count("made.split") == 0 and "numpy 2" in body
    svg = ElementTree.parse(tmp_path / "out" / "loss.svg").getroot()
    assert len([e for e in svg.iter() if e.tag.endswith("polyline")]) == 2


def test_text_is_made_harmless() -> None:
    """One line stays one line, and a fence is longer than any inside."""
    assert line("a\n\n# b | c\t<d>\u2028*e*") == r"a \# b \| c \<d\> \*e\*"
    assert fenced("x\n```\ny").splitlines()[0] == "````text"
    assert len(line("x" * 10**6)) == 2000


def test_what_is_not_at_hand_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that was sent to somebody has no archive and no run; a run of another model does not count."""
    folder = full_run(tmp_path, "x")
    (tmp_path / "runs" / NAME / "fingerprint.json").write_text('{"fingerprint": "other"}')
    export(open_model(str(folder)), tmp_path / "a", tmp_path)
    assert not (tmp_path / "a" / "loss.svg").exists() and "losses" in capsys.readouterr().out
    (folder / "archive" / str(STEP) / "manifest.json").unlink()
    export(open_model(str(folder)), tmp_path / "b", tmp_path)
    assert "data and licences" in capsys.readouterr().out
    assert "## Data" not in (tmp_path / "b" / "README.md").read_text()


def test_an_archive_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its licences and figures would be told of the wrong weights."""
    folder = full_run(tmp_path, "x")
    edit(folder / "archive" / str(STEP) / "manifest.json", "files", {"model.bin": {"sha256": "0" * 64}})
    with pytest.raises(DataError, match="must be the archive of"):
        export(open_model(str(folder)), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of a user's is overwritten; an empty folder is fine, and nothing else is left behind."""
    folder, out = make_model(tmp_path), tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    assert main(["export", str(folder), str(out)]) == 0
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {p.name for p in out.iterdir()} == names | {"README.md"} and len(list(out.parent.iterdir())) == 1
    assert main(["export", str(folder), str(out)]) == 1
    assert "must be an empty folder" in capsys.readouterr().err
    with pytest.raises(StorageError, match="must be an empty folder"):
        export(open_model(str(folder)), folder / "model.bin", tmp_path)


def test_a_card_of_text_that_is_no_text(tmp_path: Path) -> None:
    """JSON can spell lone surrogates, which no UTF-8 file can hold."""
    folder = full_run(tmp_path, "x")
    edit(folder / "resolved.json", "experiment.description", "half \ud83d of it")
    export(open_model(str(folder)), tmp_path / "out", tmp_path)
    assert "half ? of it" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("number", ["1e400", "1" + "0" * 400])
def test_figures_must_be_figures(tmp_path: Path, number: str) -> None:
    """JSON knows no bounds: the card told of inf bits per byte, and a long whole number was an OverflowError."""
    folder = full_run(tmp_path, "x")
    path = folder / "archive" / str(STEP) / EVALUATION
    path.write_text(path.read_text().replace("1.25", number))
    with pytest.raises(DataError, match="bits_per_byte must be a number"):
        export(open_model(str(folder)), tmp_path / "out", tmp_path)


def test_a_history_without_a_first_step(tmp_path: Path) -> None:
    """A curve that ends at step 0 was a division by zero."""
    folder = full_run(tmp_path, "x")
    (tmp_path / "runs" / NAME / f"{NAME}.loss.json").write_text('[\n{"step":0,"loss":1.5}\n]\n')
    export(open_model(str(folder)), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "loss.svg").exists()


def test_the_folder_that_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be replaced by a renamed one: a traceback, at the very end."""
    folder, out = make_model(tmp_path), tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    assert main(["export", str(folder), "."]) == 1
    assert "name another one" in capsys.readouterr().err and list(out.iterdir()) == []
