"""The hash of a stage's code: what the code does counts, what it says about itself does not."""

from pathlib import Path

import pytest

from andrea.errors import DataError
from andrea.sourcehash import meaning, source_hash

CODE = '''"""Docstring."""
import math


class Circle:
    """A circle."""

    def area(self, r: float) -> float:
        """Of a circle."""
        text = """a string that is used"""
        return math.pi * r**2 if text else 0.0
'''


def hashed(tmp_path: Path, code: str, name: str = "stage.py") -> str:
    (tmp_path / name).write_text(code)
    meaning.cache_clear()  # within one process a file counts as it was first read
    return source_hash(tmp_path, [name])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import math", "import math  # a comment"),
        ('"""Docstring."""\n', ""),
        ("A circle.", "A round thing."),
        ('        """Of a circle."""\n', ""),
        ("math.pi * r**2", "(\n            math.pi * r ** 2\n        )"),
        ('"""a string that is used"""', "'a string that is used'"),
    ],
)
def test_words_and_layout_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    """Guards against hours of work that are done again because a comment got better."""
    assert old in CODE
    assert hashed(tmp_path, CODE) == hashed(tmp_path, CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r**2", "r**3"),
        ("a string that is used", "another string"),
        ("def area(self, r: float)", "def area(self, r: float = 1.0)"),
        ("class Circle", "class Disc"),
    ],
)
def test_what_the_code_does_counts(tmp_path: Path, old: str, new: str) -> None:
    """Guards against stale data after a real edit."""
    assert old in CODE
    assert hashed(tmp_path, CODE) != hashed(tmp_path, CODE.replace(old, new))


def test_other_files_count_by_bytes(tmp_path: Path) -> None:
    """Guards against a template whose changed comment is missed: in HTML it is part of the page."""
    assert hashed(tmp_path, "a # b", "page.html") != hashed(tmp_path, "a", "page.html")


def test_a_docstring_alone_is_a_body(tmp_path: Path) -> None:
    """Guards against a class of nothing but its docstring, which would become a syntax error."""
    assert hashed(tmp_path, 'class A:\n    """Text."""\n') == hashed(tmp_path, "class A:\n    pass\n")


def test_names_count_and_broken_code_is_hashed_as_it_is(tmp_path: Path) -> None:
    """Guards against a moved module that goes unnoticed, and against a Snakefile that dies of a half-saved file."""
    assert hashed(tmp_path, CODE, "a.py") != hashed(tmp_path, CODE, "b.py")
    assert hashed(tmp_path, "def broken(:") != hashed(tmp_path, "def broken(: ")


def test_a_pattern_without_files_is_an_error(tmp_path: Path) -> None:
    """Guards against a renamed module that silently drops out of its stage's hash."""
    with pytest.raises(DataError, match=r"missing\.py must name code"):
        source_hash(tmp_path, ["missing.py"])
