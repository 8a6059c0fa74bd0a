"""The comparison of mixing policies runs from token files to its table, and every policy is what its name says."""

import json
import sys
from pathlib import Path

import pytest
from bandit_run import BANDIT, BASE
from fake_engine import FakeEngine
from tiny_run import make_project

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import firehose_policies as benchmark

sys.path.pop()  # other tests' libraries must not find our programs


def test_policies_are_compared_at_equal_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards a script that costs minutes on a rented card: it must not fail in its last line."""
    make_project(tmp_path, **BASE | {"firehose__bandit": BANDIT | {"curriculum_warmup_steps": 0}})
    model = {"d_model": 8, "n_heads": 2, "n_layers": 1, "context": 16}
    monkeypatch.setitem(benchmark.SIZES, "tiny", (model, 4, 3e-3, 0.09))
    monkeypatch.setattr(benchmark, "open_engine", lambda experiment, _: FakeEngine(experiment))
    policies = ["uniform", "size", "bandit", "bandit:background=0.0:focus_sources=[2,2]:reward.threshold=1.5"]
    where = ["--corpus", str(tmp_path), "--json", str(tmp_path / "out.json"), "--model", "tiny", "--leave-out", "beta"]
    benchmark.main([*where, "--steps", "200", "--seeds", "1", "2", "--policies", *policies])
    results = json.loads((tmp_path / "out.json").read_bytes())["results"]
    assert list(results) == policies
    for rows in results.values():
        assert [row["seed"] for row in rows] == [1, 2]
        assert all(sum(row["pulls"].values()) == 200 and len(row["curve"]) == 4 for row in rows)
    shares = {policy: rows[0]["pulls"]["beta"] / 200 for policy, rows in results.items()}
    assert 0.4 < shares["uniform"] < 0.6
    assert shares["size"] < 0.15 < shares["bandit"]
    table = capsys.readouterr().out
    assert "| mean without beta, after 4/4 of the steps |" in table
    assert "size - uniform, seed by seed:" in table
