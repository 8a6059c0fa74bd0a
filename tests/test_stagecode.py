"""The lists of code behind the stages are whole: nothing that a stage imports may change unseen."""

import ast
from pathlib import Path

import pytest

from andrea import stagecode

ROOT = Path(__file__).resolve().parent.parent
# stage -> what its command imports first, beside andrea.cli
STAGES = {
    "hub": (["andrea.sources.hub", "andrea.sources.forms", "andrea.sources.shards"], stagecode.PULL["hub"]),
    "package": (["andrea.sources.chitchat", "andrea.sources.shards"], stagecode.PULL["package"]),
    "synthetic": (["andrea.sources.synthetic", "andrea.sources.shards"], stagecode.PULL["synthetic"]),
    "files": (["andrea.sources.folder", "andrea.sources.shards"], stagecode.PULL["files"]),
    "megachat": (["andrea.prepare"], stagecode.MEGACHAT),
    "tokenizer": (["andrea.tokenizer.stage"], stagecode.TOKENIZER),
    "tokens": (["andrea.tokens"], stagecode.TOKENS),
}
# rerunning these reruns the stage anyway, by way of their outputs
UPSTREAM = {
    "megachat": "raw",
    "tokenizer": "megachat",
    "tokens": "tokenizer",
}


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "andrea" and file_of(name)}


def closure(modules: list[str]) -> set[str]:
    """`modules` and all that they import, not going on behind infrastructure."""
    reached: set[str] = set()
    ahead = list(modules)
    while ahead:
        module = ahead.pop()
        if module in reached or module in stagecode.INFRASTRUCTURE:
            continue
        reached.add(module)
        path = file_of(module)
        assert path, module
        ahead += imports(path)
    return reached


def covered(patterns: list[str]) -> set[Path]:
    return {path for pattern in patterns for path in ROOT.glob(pattern)}


@pytest.mark.parametrize("stage", STAGES)
def test_every_module_of_a_stage_is_in_its_hash(stage: str) -> None:
    """Guards against stale data after an edit of a module that somebody moved code into."""
    modules, patterns = STAGES[stage]
    known = covered(patterns)
    while stage in UPSTREAM:
        stage = UPSTREAM[stage]
        known |= covered(STAGES[stage][1] if stage in STAGES else [p for kind in stagecode.PULL.values() for p in kind])
    missing = {module for module in closure(modules) if file_of(module) not in known}
    assert missing == set()


def test_every_pattern_names_files() -> None:
    """Guards against a list that names modules of the past."""
    for _, patterns in STAGES.values():
        for pattern in patterns:
            assert covered([pattern]), pattern
