"""What the Snakefile does when a run starts and when it fails; rules themselves need none of it.

Snakemake waits for a running job at SIGTERM and tells it nothing, so the signal is passed on to the trainer.
Its own lock holds no process id and outlives a kill; ours is a flock, which the kernel lets go with its owner.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from andrea.checkpoint import steps_in
from andrea.engine.cuda.fp8 import CAPABILITY
from andrea.errors import AndreaError, EngineError, RunError
from andrea.estimate import CPU_MACHINE, cpu_seconds
from andrea.experiment import SUFFIX, Experiment, load
from andrea.paths import clashes, own_texts, raw_datasets, short_name
from andrea.training.gate import HALTED
from andrea.training.resume import check_target
from andrea.training.runfolder import stands_at

GUARD = Path(".snakemake/andrea.lock")


def use_this_python(root: Path) -> None:
    """Let `python` in a rule be the Python that runs Snakemake, also when no environment is activated.

    It imports the `andrea` of `root`: the code that runs is the code whose hash stands in the rules.
    """
    python = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    modules = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(PATH=os.pathsep.join(python), PYTHONPATH=os.pathsep.join(modules))


def require_project(root: Path) -> None:
    """Raise RunError when Snakemake works in another folder: experiments, own texts and the lock file lie in `root`."""
    if not Path.cwd().samefile(root):
        raise RunError(
            f"Snakemake must work in the project's own folder, {root}",
            got=f"{Path.cwd()}",
            fix=f"leave --directory out, or name the project: --directory {root}; for a second set of data, copy the project",
        )


def load_experiments(root: Path) -> tuple[list[Experiment], dict[str, AndreaError]]:
    """The experiments of a project, and the mistakes of the others by target; each of these costs one line.

    Raises the first mistake when no experiment is left.
    """
    good: list[Experiment] = []
    broken: dict[str, AndreaError] = {}
    for path in sorted(root.glob(f"experiments/ANDREA-*{SUFFIX}.json")):
        try:
            experiment = load(path)
            for _, folder in raw_datasets([experiment]).values():
                own_texts(folder)
            good.append(experiment)
        except AndreaError as mistake:
            broken["train_" + re.sub(r"\W", "_", short_name(path.stem.removesuffix(SUFFIX)))] = mistake
    clashing = clashes(good)
    broken |= {f"train_{short_name(name)}": clash for name, clash in clashing.items()}
    good = [experiment for experiment in good if experiment.name not in clashing]
    for target, told in broken.items():
        print(f"passed over: {told.must} ({target} says more)", file=sys.stderr)
    if broken and not good:
        raise next(iter(broken.values()))
    for experiment in good:
        broken.pop(f"train_{short_name(experiment.name)}", None)
    return good, broken


def hold_guard(root: Path) -> None:
    """Show that a Snakemake run is alive here until this process ends; several may be. Children do not inherit it."""
    guard = root / GUARD
    guard.parent.mkdir(exist_ok=True)
    fcntl.flock(os.open(guard, os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_SH)


def trainers(root: Path) -> dict[str, int]:
    """Experiment name -> process id of the trainer that holds its run folder now."""
    held = {}
    for lock in root.glob("runs/*/lock"):
        with contextlib.suppress(OSError):  # no right to read it, or it vanished just now: no trainer of ours
            pid = _read_pid(lock.with_name("pid")) if lock.is_file() else None
            if pid is not None and is_locked(lock) and _has_open(pid, lock):
                held[lock.parent.name] = pid
    return held


def is_locked(lock: Path, kind: int = fcntl.LOCK_SH) -> bool:
    """True while another process holds a flock on `lock` that a lock of `kind` has to wait for."""
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text()) if path.is_file() else None
    except (OSError, ValueError):
        return None


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process has `path` open: a pid file that a dead trainer left may name a stranger."""
    wanted = path.stat()
    for handle in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if os.path.samestat(handle.stat(), wanted):
                return True
        except OSError:
            continue
    return False


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def forward_sigterm(root: Path) -> None:
    """From now on a SIGTERM also reaches this process's own trainers, which save and leave. Call after Snakemake's."""
    earlier = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        if callable(earlier):
            earlier(number, frame)
        for pid in trainers(root).values():
            if _parent(pid) == os.getpid():
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)


def require_engines(experiments: Iterable[Experiment]) -> None:
    """Raise EngineError when one of `experiments` asks for a GPU that cannot be used here: before the first download."""
    for experiment in experiments:
        problem = gpu_problem() if experiment.train.engine == "cuda" else ""
        if problem:
            days = cpu_seconds(experiment) / 86400
            raise EngineError(
                f'{experiment.name} trains on an NVIDIA GPU ("engine": "cuda")',
                got=problem,
                fix="on a machine with one: .venv/bin/python -m pip install --require-hashes -r locks/cuda13.txt\n"
                f'  or:  set "engine": "cpu" and "precision": "fp32" in {experiment.path.name}; that takes about '
                f"{days:,.1f} days on {CPU_MACHINE} (estimate)",
            )
        if experiment.train.precision == "fp8" and gpu_capability() < CAPABILITY:
            raise EngineError(
                f'{experiment.name} trains in "precision": "fp8", which needs compute capability 8.9 or later',
                got=".".join(map(str, gpu_capability())),
                fix=f'write "precision": "bf16" in {experiment.path.name}',
            )


def require_steps(root: Path, experiments: Iterable[Experiment]) -> None:
    """Raise RunError when a run has passed the steps that are asked for: before Snakemake deletes its model.

    `experiments` are those whose tokens stay as they are. The trainer itself refuses too, but only after that.
    """
    for experiment in experiments:
        kept = steps_in(root / "runs" / experiment.name / "checkpoints")
        check_target(stands_at(experiment, root), experiment, kept)


def gpu_problem() -> str:
    """Why the CUDA engine cannot run here; empty when it can."""
    return card_problem() or ("" if find_spec("cupy") else "the GPU packages are not installed")


def card_problem() -> str:
    """Why there is no GPU to run on; empty when there is one. Needs no package."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver on this machine (libcuda.so.1)"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or count.value < 1:
        return f"the NVIDIA driver finds no GPU (CUDA error {status})"
    return ""


def gpu_capability() -> tuple[int, int]:
    """Compute capability of the first GPU, by the driver; after gpu_problem() has found none."""
    driver, major, minor = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    return major.value, minor.value


def stopped(root: Path, names: Iterable[str], since: float) -> list[str]:
    """One line for each experiment of `names` whose trainer began after `since` (Unix time) and has left no model."""
    lines = []
    for name in sorted(set(names)):
        pid = root / "runs" / name / "pid"
        if (root / "results" / name / "model.bin").exists() or not pid.exists() or pid.stat().st_mtime < since:
            continue
        steps = steps_in(pid.parent / "checkpoints")
        if (pid.parent / HALTED).exists():
            lines.append(f"{name}: halted by its coherence gate, see {pid.parent / 'train.log'}")
            continue
        saved = (
            f"saved up to step {steps[-1]}; unless an error above says otherwise, the same command goes on from there"
        )
        where = saved if steps else "no checkpoint yet"
        lines.append(f"{name}: {where}")
    return lines


def unlock(root: Path = Path(), patience: float = 10.0) -> int:
    """Remove a Snakemake lock that a killed run left in `root`; returns an exit code.

    A run or a trainer that is still alive keeps it. A trainer whose Snakemake was killed needs a moment to save.
    """
    if not any((root / ".snakemake" / "locks").glob("*")):
        return 0
    (root / GUARD).touch()
    if not is_locked(root / GUARD, fcntl.LOCK_EX):  # no live run shares it
        until = time.monotonic() + patience
        while trainers(root) and time.monotonic() < until:
            time.sleep(0.2)
        if not trainers(root):
            print("an earlier run was killed and left Snakemake's lock: removing it", file=sys.stderr)
            return subprocess.run([sys.executable, "-m", "snakemake", "--unlock"], cwd=root, check=False).returncode
    for name, pid in trainers(root).items():
        print(f"{name} is being trained by process {pid}; kill -TERM {pid} stops it with a checkpoint", file=sys.stderr)
    return 0
