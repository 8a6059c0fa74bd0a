"""python die_writing.py ROOT STEP PLACE: a trainer that is killed (SIGKILL) while it writes the checkpoint of STEP.

PLACE: "bin" half-way through the temporary file, "state" and "manifest" before these are written, "copy" before the
run's state file, "prune" in the middle of a removal; "cut" before the run files are cut back at the start.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from tiny_run import NAME

from andrea import checkpoint, proxy, recordfile
from andrea.files import atomic_file
from andrea.training import writer

ROOT, STEP, PLACE = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def when(function: Any, matches: Any) -> Any:
    """`function`, but death when `matches(first argument)`."""
    return lambda path, *rest, **named: die() if matches(path) else function(path, *rest, **named)


def half_a_file(path: Path, state: checkpoint.Checkpoint) -> None:
    with atomic_file(path) as file:
        data = b"".join(state.parts().values())
        file.write(data if state.step != STEP else data[: len(data) // 2])
        file.flush()
        if state.step == STEP:
            die()


stem = f"step_{STEP:06d}"
if PLACE == "bin":
    checkpoint.write_model = half_a_file
elif PLACE == "state":
    checkpoint.write_atomic = when(checkpoint.write_atomic, lambda path: path.name.startswith(stem))
elif PLACE == "manifest":
    checkpoint.write_json = when(checkpoint.write_json, lambda path: path.name.startswith(stem))
elif PLACE == "copy":
    saved: list[int] = []
    real = writer.write
    writer.write = lambda folder, state, *rest, **named: (real(folder, state, *rest, **named), saved.append(state.step))
    writer.write_json = when(writer.write_json, lambda path: saved[-1] == STEP)
elif PLACE == "prune":
    real_unlink = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".bin" and int(self.stem.removeprefix("step_")) == STEP:
            die()
        real_unlink(self, missing_ok)

    Path.unlink = unlink  # type: ignore[method-assign]
elif PLACE == "cut":
    recordfile.RecordFile.cut = die
proxy.open_engine = lambda experiment, threads: FakeEngine(experiment)
sys.exit(proxy.train(ROOT / "experiments" / f"{NAME}-TRAIN.json", root=ROOT))
