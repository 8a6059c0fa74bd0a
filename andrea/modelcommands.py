"""The commands chat, sample, eval and export: their options, and what each puts together."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from andrea.talk import TEMPERATURE, TOKENS, TOP_K
from andrea.terminal import tell

Add = Callable[..., argparse.ArgumentParser]


def add_commands(add: Add) -> None:
    """Tell the command line about all four; `add` is its own way to add one."""
    command = _with_model(add("chat", _chat, "talk to a trained model", experiment=False, example="tiny"))
    _with_choice(_with_engine(command))
    text = "write a model's replies to a file of prompts"
    command = _with_model(add("sample", _sample, text, experiment=False, example="tiny --prompts prompts.txt"))
    command.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="a .txt or .jsonl, a prompt a line"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write the JSON lines here, not to standard output")
    _with_choice(_with_engine(command))
    text = "measure how well a model predicts a text"
    command = _with_model(add("eval", _eval, text, experiment=False, example="tiny my-text.txt"))
    text = "a .btok, .jsonl or .txt file, or a folder; left out: the experiment's own held-out text"
    command.add_argument("corpus", nargs="?", type=Path, help=text)
    text = "read at most so many blocks of a source, evenly spread; 0: all (256; of held-out text those of the final evaluation)"
    command.add_argument("--blocks", type=whole_number, metavar="N", help=text)
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _with_engine(command)
    text = "write a model for the transformers library"
    command = _with_model(add("export", _export, text, experiment=False, example="tiny tiny-model"))
    command.add_argument("folder", type=Path, metavar="DIR", help="a folder that is empty, or not there yet")


def _with_model(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    text = "an experiment that has been trained (tiny, ANDREA-12M), a folder with model.bin, or that file"
    command.add_argument("model", help=text)
    return command


def _with_engine(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    text = "cpu (runs anywhere, always fp32) or cuda (in the precision of the training; fp8 in bf16)"
    command.add_argument("--engine", choices=("cpu", "cuda"), default="cpu", help=text)
    text = "processor threads for whole texts; a reply is made by one. They change the speed, not the bits"
    command.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N", help=text)
    return command


def _with_choice(command: argparse.ArgumentParser) -> None:
    command.set_defaults(threads=1)  # each would take memory for nothing
    text = f"0 always takes the likeliest token ({TEMPERATURE})"
    command.add_argument("--temperature", type=float, default=TEMPERATURE, metavar="X", help=text)
    text = f"draw from the K likeliest tokens; 0: from all ({TOP_K})"
    command.add_argument("--top-k", type=int, default=TOP_K, metavar="K", help=text)
    text = "of those, from the likeliest that together have this share; 1: from all (1)"
    command.add_argument("--top-p", type=float, default=1.0, metavar="P", help=text)
    command.add_argument("--seed", type=int, default=1, metavar="N", help="another seed gives other replies (1)")
    command.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"most tokens of a reply ({TOKENS})")


def whole_number(text: str) -> int:
    """An option's value, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text}")
    return int(text)


def _chat(args: argparse.Namespace) -> int:
    from andrea.talk import chat
    from andrea.talk.open import open_speaker, settings_of

    settings, person = settings_of(args), sys.stdin.isatty() and sys.stdout.isatty()
    model, engine = open_speaker(args)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale: text is UTF-8 here
            stream.reconfigure(encoding="utf-8", errors="replace")
    if person:
        print(chat.HELP, file=sys.stderr)
    return chat.Chat(model, engine, settings, marks=person).run(chat.terminal if person else chat.pipe)


def _sample(args: argparse.Namespace) -> int:
    from andrea.files import atomic_file
    from andrea.talk.open import open_speaker, settings_of
    from andrea.talk.prompts import check_out, read_prompts, sample

    settings = settings_of(args)
    if args.out is not None:
        check_out(args.out, args.prompts)
    model, engine = open_speaker(args)
    lines = sample(model, engine, settings, read_prompts(args.prompts, model))
    if args.out is None:
        for line in lines:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return 0
    with atomic_file(args.out) as file:
        for line in lines:
            file.write(line)
    return 0


def _eval(args: argparse.Namespace) -> int:
    from andrea.talk.measure import BLOCKS, corpora, evaluate, final_blocks, table
    from andrea.talk.open import open_speaker

    model, engine = open_speaker(args)
    sources = corpora(model, args.corpus, Path(), args.threads)
    final = args.corpus is None and args.blocks is None
    most = final_blocks(model) if final else BLOCKS if args.blocks is None else args.blocks
    result = evaluate(model, engine, sources, most, whole=final)
    tell(json.dumps(result, indent=1, allow_nan=False) if args.json else table(result))
    return 0


def _export(args: argparse.Namespace) -> int:
    from andrea.export import export
    from andrea.talk.model import open_model

    export(open_model(args.model), args.folder, Path())
    return 0
