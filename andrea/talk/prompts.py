"""`andrea sample`: a file of prompts in, one JSON line a reply out.

A .txt file holds a prompt a line. A line of .jsonl is {"prompt": "..."}, or a conversation in one of the forms that own
text may have (andrea/sources/records.py), whose last turn is the user's. The random numbers of prompt n, counted from
0, are those of seed + n, which its line names: any line can be made again alone.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from andrea.engine import Inference
from andrea.errors import DataError
from andrea.files import require_file
from andrea.megachat import Conversation, Turn
from andrea.sources.records import Rejected, parse
from andrea.talk.history import check_length, prompt_ids
from andrea.talk.model import Model
from andrea.talk.reply import Reply, Settings, grow

MOST_BYTES = 1 << 30
_CONTROL = re.compile("[\x7f-\x9f]")  # which JSON leaves as they are, and a terminal may obey


class Prompt(NamedTuple):
    """`shown` is what the result repeats: the text, or a list of turns. `ids` begin with BOS."""

    shown: Any
    ids: list[int]


def read_prompts(path: Path, model: Model) -> list[Prompt]:
    """All prompts of a file, encoded; DataError names file and line of one that is wrong or too long."""
    jsonl, prompts = path.suffix.lower() == ".jsonl", []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        shown, turns = _parse(line, path, number) if jsonl else (line, [Turn("user", line)])
        ids = prompt_ids(model.tokenizer, turns)
        check_length(ids, model.shape.context, f"{path}, line {number}: {turns[-1].text}")
        prompts.append(Prompt(shown, ids))
    if not prompts:
        raise DataError(f"{path} must hold a prompt", got="no line with text", fix="write one prompt a line")
    return prompts


def sample(model: Model, engine: Inference, settings: Settings, prompts: list[Prompt]) -> Iterator[bytes]:
    """One line of JSON a prompt."""
    shared = {"model": model.name, "step": model.step, "engine": engine.describe(), "tokens": settings.tokens}
    for number, prompt in enumerate(prompts):
        own = replace(settings, seed=settings.seed + number)
        reply = Reply(model.tokenizer)
        for _ in grow(reply, engine, prompt.ids, own, 0):
            pass
        record = {"prompt": prompt.shown, "reply": reply.text, "ended": reply.ended, "tokens": reply.tokens}
        record |= {"seed": own.seed, "settings": {**shared, **asdict(settings.choice)}}
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        yield (_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n").encode()


def check_out(out: Path, prompts: Path) -> None:
    """DataError unless replies may be written to `out`: not over the prompts, and not in the place of a device."""
    require_file(out)
    if not out.name or (out.exists() and prompts.exists() and out.samefile(prompts)):
        got = "the file of the prompts, which would be lost" if out.name else "no file name"
        raise DataError(f"--out {out} must name a file for the replies", got=got, fix="name another file")


def _lines(path: Path) -> list[str]:
    """Split at line ends only: other separators are content."""
    kind = path.suffix.lower()
    if kind not in (".txt", ".jsonl"):
        raise DataError(f"{path} must be a .txt or .jsonl file", got=kind or "no ending", fix="rename it to say which")
    require_file(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path} must be at most 1 GiB", got=f"{path.stat().st_size:,} bytes", fix="split it")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as cause:
        raise DataError(f"{path} must be a readable file", got=cause.strerror, fix="check the name") from cause
    except UnicodeDecodeError as cause:
        raise DataError(f"{path} must be UTF-8", got=cause, fix="save it as UTF-8") from cause
    return [line.removesuffix("\r") for line in text.split("\n")]


def _parse(line: str, path: Path, number: int) -> tuple[Any, list[Turn]]:
    """(what is shown, turns) of one line of JSONL."""
    try:
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("prompt"), str):
            value = {"turns": [{"role": "user", "text": value["prompt"]}]}
        document = parse(value).document
    except (ValueError, RecursionError) as cause:
        _refuse(path, number, f"no JSON: {cause}", cause)
    except Rejected as cause:
        _refuse(path, number, f"{cause.reason}: {line.strip()[:80]}", cause)
    if not isinstance(document, Conversation) or document.turns[-1].role != "user":
        _refuse(path, number, f"nothing to reply to: {line.strip()[:80]}", None)
    turns = list(document.turns)
    return (turns[0].text if len(turns) == 1 else [turn._asdict() for turn in turns]), turns


def _refuse(path: Path, number: int, got: str, cause: Exception | None) -> NoReturn:
    raise DataError(
        f'{path}, line {number} must be {{"prompt": "..."}} or a conversation that ends with the user\'s turn',
        got=got,
        fix="mend the line",
    ) from cause
