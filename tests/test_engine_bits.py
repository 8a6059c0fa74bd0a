"""The same bits from a process that compiles the loops and from one that loads them compiled."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib
from engine_cases import SHAPE, batches, engine, rates
from test_engine_cpu import WIDE
from andrea.engine import Choice
from andrea.engine.warmup import announce
announce()
digest = hashlib.sha256()
for shape in (SHAPE, WIDE):
    made = engine(shape, batch_size=6)
    losses, norms = made.run(batches(6, 6, shape), rates(6))
    s = made.snapshot()
    for part in (losses, norms, s.weights, s.m, s.v, made.evaluate(batches(1, 6, shape)[0])):
        digest.update(part.tobytes())
    digest.update(repr(made.generate([[1, 2]], 20, Choice(1.0, 0), seed=1, step=1)).encode())
print(digest.hexdigest())
"""


def run(cache: Path, *, says: str = "") -> str:
    tests = Path(__file__).parent
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{tests}:{tests.parent}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and says in done.stderr and bool(says) == bool(done.stderr), done.stderr
    return done.stdout


def test_compiled_now_and_compiled_before(tmp_path: Path) -> None:
    """Guards exact resume across processes: with reordered additions the two differ, which was measured once."""
    fresh = run(tmp_path, says="compiling the CPU loops, once")
    compiled = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.nbc")}
    assert compiled, "nothing was kept, so the second process would compile too"
    assert run(tmp_path) == fresh
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.nbc")} == compiled, "the second process compiled"


def test_no_fast_math() -> None:
    """Guards the rule itself: no compiled function of the engine may allow reordered additions."""
    sources = Path(__file__).parent.parent.joinpath("andrea", "engine").rglob("*.py")
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert "fastmath=" not in text.replace(" ", ""), source
        assert '"fastmath"' not in text, source
        assert "prange" not in text, source
