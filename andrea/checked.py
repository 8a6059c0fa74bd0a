"""JSON that another program wrote, read field by field: a wrong field is a DataError that names it, not a traceback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.errors import DataError
from andrea.files import read_json

MOST = 1e300  # JSON has larger numbers: 1e400 is infinite, and whole ones have no bound


class Checked:
    """A JSON object and the place it stands at: `Checked.read(path, "the tokens manifest").child("sources")`."""

    def __init__(self, value: object, path: Path, where: str = "") -> None:
        self.path, self.where = path, where
        if not isinstance(value, dict):
            raise self.wrong("an object", value)
        self.value: dict[str, Any] = value

    @classmethod
    def read(cls, path: Path, what: str) -> "Checked":
        return cls(read_json(path, what), path)

    def child(self, key: str) -> "Checked":
        return Checked(self.value.get(key), self.path, f"{self.where}.{key}" if self.where else key)

    def children(self) -> Iterator[tuple[str, "Checked"]]:
        """Every field, each of which must be an object."""
        return ((key, self.child(key)) for key in self.value)

    def list_of(self, key: str) -> Iterator["Checked"]:
        """The items of a list of objects."""
        value = self.value.get(key)
        if not isinstance(value, list):
            raise self.wrong("a list", value, key)
        return (Checked(item, self.path, f"{self.where}.{key}[{number}]") for number, item in enumerate(value))

    def text(self, key: str) -> str:
        value = self.value.get(key)
        if not isinstance(value, str):
            raise self.wrong("text", value, key)
        return value

    def count(self, key: str) -> int:
        value = self.value.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong("a count", value, key)
        return value

    def number(self, key: str) -> float:
        value = self.value.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < MOST:
            raise self.wrong("a number", value, key)
        return float(value)

    def wrong(self, kind: str, value: object, key: str = "") -> DataError:
        """The error that says so."""
        where = ".".join(filter(None, [self.where, key])) or "its content"
        got = "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
        return DataError(
            f"{self.path}: {where} must be {kind}", got=got, fix="delete the file and type the same command again"
        )
