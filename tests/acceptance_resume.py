"""The promise of exact resume, shown on the real thing: kill a run again and again, then compare every byte.

    python tests/acceptance_resume.py [--experiment tiny] [--stops 8] [--seed 1] [--raise-from STEPS]

Two copies of the project train the same experiment through Snakemake. One is left alone. The other starts
with an empty compile cache and is stopped at random moments: SIGTERM and SIGKILL to the trainer, Ctrl-C,
SIGTERM and SIGKILL to Snakemake, SIGKILL in the middle of a checkpoint write; one SIGUSR1 in between. With
--raise-from it is first asked for fewer steps, and for all of them after it has ended. Exit code 1 on any
difference. Takes a few minutes; the test suite has a short form of its own.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ["term-trainer", "ctrl-c", "kill-trainer", "kill-snakemake", "kill-in-checkpoint", "term-snakemake"]


class Project:
    """One copy of the project, in which Snakemake runs one experiment."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.run = folder / "runs" / name
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for file in filter(None, files.decode().split("\0")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
        cache = str(folder / "compile-cache")
        self.env = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": cache}

    def edit(self, **train: int) -> None:
        path = self.folder / "experiments" / f"{self.name}-TRAIN.json"
        value = json.loads(path.read_text())
        value["train"].update(train)
        path.write_text(json.dumps(value, indent=2) + "\n")

    def start(self) -> subprocess.Popen[bytes]:
        target = "train_" + self.name.removeprefix("ANDREA-").lower().replace("-", "_")
        command = [sys.executable, "-m", "snakemake", "--cores", "1", target]
        with open(self.folder / "snakemake.log", "ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def finish(self) -> None:
        if self.start().wait() != 0:
            sys.exit(f"the run in {self.folder} failed:\n" + (self.folder / "snakemake.log").read_text()[-4000:])

    def unlock(self) -> None:
        command = [sys.executable, "-m", "snakemake", "--unlock"]
        subprocess.run(command, cwd=self.folder, env=self.env, check=True, capture_output=True)

    def trainer(self) -> int | None:
        """The trainer's pid, if one is alive."""
        try:
            pid = int((self.run / "pid").read_text())
            return pid if b"train" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (OSError, ValueError):
            return None

    def step(self) -> int:
        try:
            return max((record.get("step", 0) for record in self.history()), default=0)
        except (OSError, ValueError):
            return 0

    def history(self) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = json.loads((self.run / f"{self.name}.loss.json").read_text())
        return value


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 300) -> bool:
    """True when `condition()` holds, False when Snakemake ended first."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > end:
            sys.exit("waited too long; see snakemake.log in the copy")
        time.sleep(0.002)
    return True


def stop(project: Project, kind: str, chance: random.Random) -> str:
    """Start Snakemake, let it train for a random while, stop it as `kind` says; returns where it stood."""
    process = project.start()
    before = project.step()
    if not wait_for(lambda: project.trainer() is not None and project.step() > before, process):
        return "ended before the stop"
    time.sleep(chance.uniform(0.5, 8.0))
    trainer = project.trainer()
    if kind == "kill-in-checkpoint" and trainer:
        writing = lambda: any((project.run / "checkpoints").glob(".step_*.tmp"))  # noqa: E731
        os.kill(trainer, signal.SIGUSR1)  # asks for a checkpoint, so that there is a write to hit
        if not wait_for(writing, process):
            return "ended before the stop"
    pid, signum = {
        "term-trainer": (trainer, signal.SIGTERM),
        "kill-trainer": (trainer, signal.SIGKILL),
        "kill-in-checkpoint": (trainer, signal.SIGKILL),
        "ctrl-c": (-process.pid, signal.SIGINT),
        "term-snakemake": (process.pid, signal.SIGTERM),
        "kill-snakemake": (process.pid, signal.SIGKILL),
    }[kind]
    if pid is None:
        return "ended before the stop"
    os.kill(pid, signum)
    process.wait()
    while project.trainer() is not None:
        time.sleep(0.01)
    if kind == "kill-snakemake":
        project.unlock()
    return f"step {project.step()}"


def untimed(history: list[dict[str, Any]]) -> str:
    """The history without its timings, which no run repeats."""
    return json.dumps([{k: v for k, v in record.items() if k != "ms"} for record in history])


def fingerprints(project: Project) -> dict[str, str]:
    """A hash of everything that has to be equal."""
    model = project.folder / "results" / project.name / "model.bin"
    parts = {
        "model.bin": model.read_bytes(),
        "loss.json": untimed(project.history()).encode(),
        "samples.json": (project.run / f"{project.name}.samples.json").read_bytes(),
        "state.json": (project.run / f"{project.name}.state.json").read_bytes(),
    }
    return {part: hashlib.sha256(data).hexdigest()[:16] for part, data in parts.items()}


def disturb(project: Project, stops: int, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(stops)]
    chance.shuffle(kinds)
    for kind in kinds:
        print(f"  {kind:20} {stop(project, kind, chance)}", flush=True)
    process = project.start()
    before = project.step()
    if wait_for(lambda: project.trainer() is not None and project.step() > before, process):
        os.kill(project.trainer() or 0, signal.SIGUSR1)
        print(f"  {'usr1-trainer':20} step {project.step()}", flush=True)
    if process.wait() != 0:
        sys.exit("the last run failed:\n" + (project.folder / "snakemake.log").read_text()[-4000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="tiny")
    parser.add_argument("--stops", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raise-from", type=int, metavar="STEPS")
    parser.add_argument("--steps", type=int, help="train fewer steps than the experiment says")
    args = parser.parse_args()
    name = "ANDREA-" + args.experiment.upper().replace("_", "-")
    work = Path(tempfile.mkdtemp(prefix="andrea-resume-"))
    calm, disturbed = Project(work / "calm", name), Project(work / "disturbed", name)
    for project in (calm, disturbed):
        if args.steps:
            project.edit(steps=args.steps)
    print(f"undisturbed run in {calm.folder}", flush=True)
    calm.finish()
    print(f"disturbed run in {disturbed.folder}", flush=True)
    steps = json.loads((disturbed.folder / "experiments" / f"{name}-TRAIN.json").read_text())["train"]["steps"]
    if args.raise_from:
        disturbed.edit(steps=args.raise_from)
    disturb(disturbed, args.stops, args.seed)
    if args.raise_from:
        disturbed.edit(steps=steps)
        disturbed.finish()
        print(f"  steps raised from {args.raise_from} to {steps}")
    equal = True
    other = fingerprints(disturbed)
    for part, digest in fingerprints(calm).items():
        equal &= digest == other[part]
        print(f"{part:14} {digest}  {other[part]}  {'equal' if digest == other[part] else 'DIFFERENT'}")
    if equal:
        shutil.rmtree(work)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
