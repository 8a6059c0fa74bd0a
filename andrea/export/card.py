"""The model card: README.md of an export.

Every text in it that comes from a file is made harmless first: in a line, punctuation that Markdown or HTML could read is
escaped; a sample stands in a fence that is longer than any inside it.
"""

import re
from collections.abc import Iterable, Mapping

from andrea.engine.layout import count
from andrea.export.facts import Facts
from andrea.talk.reply import harmless

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!~$&])")
_BLANKS = re.compile("[\\s\x00-\x1f\x7f-\x9f]+")
_MOST = 2000  # characters of a text from a file

_HEAD = """---
license: other
library_name: transformers
pipeline_tag: text-generation
tags:
- andrea
- gpt2
---
"""
USE = """## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = (kind.from_pretrained("FOLDER") for kind in (AutoTokenizer, AutoModelForCausalLM))
chat = [{"role": "user", "content": "Do you like music?"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
made = model.generate(**inputs, stop_strings=["\\n> "], tokenizer=tokenizer)
print(tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).split("\\n> ")[0])
```

A conversation is plain text: `> ` opens a user's turn, `< ` a reply, and the id 256 (`<|bos|>`) every document. The chat
template writes all three. `tokenizer(text)` alone adds no BOS: put `<|bos|>` in front, as the model has never seen a text
without. In a text from others that string would be read as the token: pass `split_special_tokens=True` for such text.
A reply ends at BOS or where the model begins a user's turn; prompt and reply together must fit the context. Weights are
float32; biases are zeros, as the model has none.
"""
_LIMITS = """## Limits

It is a small language model: it writes plausible turns, and it is often wrong. It was not tuned to be safe or to follow
instructions, and repeats what its data says, the bad of it included. Do not use it where somebody relies on what it writes.
It knows nothing outside of the texts above, and no other language than theirs.
"""


def render(facts: Facts, chart: str) -> str:
    """The card's text; `chart` is the file of the loss curve."""
    parts = [_HEAD, f"# {facts.model.name}\n", f"{line(facts.description)}\n", _what(facts), USE]
    parts += [_data(facts)] if facts.sources else []
    parts += [_training(facts, chart)]
    parts += [_evaluation(facts)] if facts.rates else []
    parts += [_samples(facts)] if facts.samples else []
    return "\n".join([*parts, _LIMITS])


def line(text: str) -> str:
    """Text for one line of Markdown, also in a table."""
    return _SPECIAL.sub(r"\\\1", _BLANKS.sub(" ", text[:_MOST]).strip())


def fenced(text: str) -> str:
    """Text as it is, in a block of its own."""
    text = harmless(text[:_MOST])
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are Markdown already."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _what(facts: Facts) -> str:
    s, model = facts.model.shape, facts.model
    sizes: Mapping[str, int] = {
        "parameters": count(s),
        "vocabulary": s.vocab_size,
        "width": s.d_model,
        "heads": s.n_heads,
        "layers": s.n_layers,
        "context": s.context,
        "trained steps": model.step,
    }
    head = "tied to the token embedding" if s.tied_head else "a matrix of its own"
    return (
        f"A decoder in the style of GPT-2 (pre-norm, GELU, learned positions; the head is {head}), trained from scratch on "
        "conversations and prose by ANDREA, a pipeline whose runs can be repeated bit for bit.\n\n"
        + table(sizes, [[f"{value:,}" for value in sizes.values()]])
    )


def _data(facts: Facts) -> str:
    keys = ("dataset", "bucket", "revision", "licence", "provenance")
    rows = [[line(name), *(line(row[key]) for key in keys)] for name, row in facts.sources.items()]
    return "\n".join(
        [
            "## Data and licences\n",
            table(["source", *keys], rows),
            "The licences are those of the texts. Whoever passes this model on chooses its licence, within what they allow.\n",
        ]
    )


def _training(facts: Facts, chart: str) -> str:
    rows = [[line(key.replace("_", " ")), line(value)] for key, value in facts.settings.items()]
    parts = ["## Training\n", table(["setting", "value"], rows)]
    if facts.losses:
        parts.append(f"![Training loss in nats per token, over the steps]({chart})\n")
    if facts.versions:
        made = ", ".join(f"{line(name)} {line(value)}" for name, value in facts.versions.items())
        parts.append(f"Made with {made}.\n")
    return "\n".join(parts)


def _evaluation(facts: Facts) -> str:
    rows = [[line(name), f"{model:.3f}", f"{bigram:.3f}"] for name, (model, bigram) in facts.rates.items()]
    return "\n".join(
        [
            "## Evaluation\n",
            "Bits per byte on held-out text, which no step has seen; lower is better. The bigram model knows the last token only.\n",
            table(["source", "this model", "bigram"], rows),
        ]
    )


def _samples(facts: Facts) -> str:
    parts = ["## Samples\n", "As they came, at the last step of training.\n"]
    for prompt, text in facts.samples:
        parts.append(f"{line(prompt) or '(no prompt)'}\n\n{fenced(text)}\n")
    return "\n".join(parts)
