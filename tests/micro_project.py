"""A copy of the project with one micro experiment, whose whole DAG runs for real in seconds; and Snakemake in it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAME = "ANDREA-MICRO"
TREE = ("Snakefile", "workflow", "profiles", "scripts", "experiments", "andrea")
STEPS = 12
WORDS = "the cat saw a small dog near the old house and then it ran away to the green hill".split()


class Micro:
    """The project in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "experiments" / f"{NAME}-TRAIN.json"
        self.run_folder = folder / "runs" / NAME
        self.results = folder / "results" / NAME

    @classmethod
    def create(cls, folder: Path) -> "Micro":
        """A fresh copy. Its engine uses the NumPy twins: compiled loops would be compiled anew for every copy."""
        folder.mkdir(parents=True)
        for name in TREE:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
        engine = folder / "andrea" / "engine" / "__init__.py"
        engine.write_text(engine.read_text().replace("andrea.engine.loops import", "andrea.engine.reference import"))
        assert "andrea.engine.reference import KERNELS" in engine.read_text()
        (folder / "texts").mkdir()
        for number in range(3):
            write_chats(folder / "texts" / f"chats{number}.jsonl", number)
        micro = cls(folder)
        micro.path.write_text(json.dumps(experiment(), indent=2))
        return micro

    def copy(self, folder: Path) -> "Micro":
        shutil.copytree(self.folder, folder, symlinks=True)
        return Micro(folder)

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        value = json.loads(self.path.read_text())
        change(value)
        self.path.write_text(json.dumps(value, indent=2))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake in a process group of its own; its output goes to snakemake.log."""
        with open(self.folder / "snakemake.log", "a") as log:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                text=True,
                env=environment(),
                start_new_session=True,
            )

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            timeout=120,
        )

    def grow(self) -> str:
        """Run the whole DAG; returns what Snakemake said."""
        done = self.snakemake("--cores", "2", "train_micro")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def planned(self, target: str = "train_micro") -> set[str]:
        """Rules that a dry run would run, without the target itself and without a stage's experiment: {"train", ...}."""
        done = self.snakemake("-n", target)
        assert done.returncode == 0, done.stdout
        table = done.stdout.partition("Job stats:\n")[2].partition("\n\n")[0]
        jobs = set(re.findall(r"^(\w+) +\d+$", table, re.MULTILINE)) - {"total", target}
        return {job.removesuffix("_micro") for job in jobs}


def environment() -> dict[str, str]:
    """Nothing of the caller's may decide which code runs or where it is imported from."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")}


def experiment() -> dict[str, Any]:
    """ANDREA-TINY made small enough for a test, on texts of one's own and on the generator."""
    value: dict[str, Any] = json.loads((ROOT / "experiments" / "ANDREA-TINY-TRAIN.json").read_text())
    source = value["sources"]["chitchat"] | {"min_characters": 0}
    value["name"] = NAME
    value["sources"] = {"texts": source | {"files": "texts"}, "synthetic-chat": source | {"max_documents": 200}}
    value["tokenizer"] |= {"segments": 64, "sample_bytes": 50_000, "min_count": 2}
    value["model"] |= {"d_model": 16, "n_heads": 2, "n_layers": 1, "context": 32}
    value["train"] |= {"batch_size": 2, "steps": STEPS, "horizon": STEPS, "warmup_steps": 2}
    value["firehose"]["weights"] = {"texts": 0.5, "synthetic-chat": 0.5}
    value["validation"] = {"every": 6, "blocks": 2}
    value["samples"] |= {"every": 6, "tokens": 8, "prompts": ["hello"]}
    value["checkpoints"] |= {"every": 4}
    return value


def write_chats(path: Path, seed: int) -> None:
    """50 short conversations, one a line, none like another."""
    lines = []
    for number in range(50):
        words = [WORDS[(seed + number * step + step * step) % len(WORDS)] for step in range(30)]
        turns = [("user", words[:12]), ("reply", [*words[12:], str(number), str(seed)])]
        lines.append(json.dumps({"turns": [{"role": role, "text": " ".join(text)} for role, text in turns]}))
    path.write_text("\n".join(lines) + "\n")
