"""A mini run with bandit, curriculum warm-up and, if asked for, a polish pivot in it."""

from pathlib import Path
from typing import Any

from tiny_run import NAME, make_project, run_folder, set_experiment

from andrea import proxy
from andrea.recordfile import read_records

STOPPED, HALTED = 75, 76
PIVOT = 31  # in the middle of things: neither a checkpoint nor a sample is due there
BANDIT: dict[str, Any] = {
    "reward": {
        "kind": "learning",
        "alpha": 0.1,
        "slow_alpha": 0.05,
        "threshold": 0.1,
        "scale": 100.0,
        "burn_in": 2,
        "forget": 0.1,
    },
    "exploration": 0.5,
    "cold_start": 3,
    "focus_sources": [1, 1],
    "focus_epochs": 4.0,
    "background": 0.2,
    "longest_rest": 4,
    "coverage_bonus": 0.3,
    "coverage_until": 0.5,
    "floors": {"alpha": 0.1, "beta": 0.1},
    "caps": {"alpha": 1.3, "beta": 1.3},
    "curriculum_warmup_steps": 13,
    "curriculum_warmup_sources": ["alpha"],
}
POLISH: dict[str, Any] = {
    "at_step": PIVOT,
    "floors": {"alpha": 0.0, "beta": 0.9},
    "caps": {"alpha": 0.1, "beta": 2.0},
    "lr": 0.002,
    "min_lr_ratio": 0.5,
    "horizon": 20,
}
BASE: dict[str, Any] = {
    "firehose__policy": "bandit",
    "firehose__bandit": BANDIT,
    "checkpoints__keep_every": 10,
}


class Project:
    """A mini project with the bandit; `polish` is None or the section."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root, self.path = root, make_project(root, **BASE | changes)

    def edit(self, **changes: Any) -> None:
        set_experiment(self.root, **BASE | changes)

    def train(self, **options: Any) -> int:
        return proxy.train(self.path, root=self.root, **options)

    @property
    def run(self) -> Path:
        return run_folder(self.root)

    def steps(self) -> list[dict[str, Any]]:
        return [r for r in read_records(self.run / f"{NAME}.loss.json") if "source" in r]

    def sampled(self, folder: str = ".") -> set[int]:
        return {r["step"] for r in read_records(self.run / folder / f"{NAME}.samples.json")}
