"""Runs the two programs that measure PyTorch, each in a process of its own, so that neither side holds the other's memory.

PyTorch is not a dependency of the project; the interpreter that has it may be another one than ours.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIMIT = 900  # seconds of one program; torch.compile takes most of them


def add_option(parser: Any) -> None:
    """--torch, alone or with the interpreter to use."""
    text = "measure PyTorch too, with this interpreter (ours when none is named)"
    parser.add_argument("--torch", nargs="?", const=sys.executable, metavar="PYTHON", help=text)


def measure(python: str, program: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """What benchmarks/`program` prints: its last line, JSON. SystemExit with its last words when it fails."""
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    command = [python, str(Path(__file__).with_name(program)), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise SystemExit(f"{program} must run: {cause}. Leave out --torch to measure ours alone.") from cause
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise SystemExit(f"{program} must succeed with {python}: it said: {said}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
