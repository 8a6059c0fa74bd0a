"""What a run was made with: library versions, processor, and a hash of the code that decides its numbers.

Kept in the run folder as a list, one entry for each change: {"from_step", "versions"}.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.engine import versions
from andrea.errors import DataError
from andrea.files import read_json, write_json
from andrea.sourcehash import source_hash

VERSIONS = "versions.json"
ROOT = Path(__file__).resolve().parent.parent.parent
_PARTS = "bandit banditstate batches btok coverage firehose philox proxy rewards sampling schedule shuffle window"
_CODE = ["andrea/engine/**/*.py", "andrea/training/*.py", *(f"andrea/{name}.py" for name in _PARTS.split())]


def made_with() -> dict[str, str]:
    """Everything that may change a run's bits: the engine's versions, and "code"."""
    kernels = ["kernels/*"] if (ROOT / "kernels").is_dir() else []
    return {**versions(), "code": source_hash(ROOT, [*_CODE, *kernels])}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`numpy 2.3.1 -> 2.4.6, code ...`; empty when nothing has changed."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}" for name in names)


def note_versions(path: Path, step: int, now: Mapping[str, str]) -> None:
    """Say in the run's record that it goes on from `step` with `now`. Entries of later steps are done over."""
    found = read_versions(path)
    entries = [entry for entry in found if entry["from_step"] <= step]
    if not entries or entries[-1]["versions"] != now:
        entries = [e for e in entries if e["from_step"] < step] + [{"from_step": step, "versions": dict(now)}]
    if entries != found:
        write_json(path, {"made_with": entries})


def read_versions(path: Path) -> list[dict[str, Any]]:
    """The run's record; empty when it has none yet. DataError when it was edited into something else."""
    entries = read_json(path, "the run's versions").get("made_with") if path.exists() else []
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise DataError(
            f"{path} must say what the run was made with", got="another shape", fix="bring it back, or delete it"
        )
    return entries


def _is_entry(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"from_step", "versions"}
        and type(value["from_step"]) is int
        and isinstance(value["versions"], dict)
    )
