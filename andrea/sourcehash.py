"""A hash of the code behind a shell command, for Snakemake's `params`: it sees the command, never the modules.

Only what a Python file *does* counts. Comments, docstrings and layout are dropped first, so that a better comment
does not rerun hours of work. Other files (a catalogue, a template) count byte for byte.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from andrea.errors import DataError


def source_hash(root: Path, patterns: Iterable[str]) -> str:
    """12 hex digits over the files that match the glob `patterns` under `root`; a pattern without files is an error."""
    files: set[Path] = set()
    for pattern in patterns:
        found = {path for path in root.glob(pattern) if path.is_file()}
        if not found:
            raise DataError(
                f"{root / pattern} must name code of the project",
                got="no such file",
                fix="restore the file (git status shows what is missing)",
            )
        files |= found
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(meaning(path) + b"\0")
    return digest.hexdigest()[:12]


@cache
def meaning(path: Path) -> bytes:
    """What counts of one file. A Python file that does not parse counts as it is: its stage will say what is wrong."""
    data = path.read_bytes()
    if path.suffix != ".py":
        return data
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return data
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return ast.unparse(tree).encode()


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
