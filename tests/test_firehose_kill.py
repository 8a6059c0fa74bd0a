"""Exact resume of real processes with bandit, curriculum warm-up and polish pivot inside the run, killed at any moment.

The engine is the CPU engine. What a kill in the middle of the pivot itself leaves is in test_training_pivot.py.
"""

import random
import signal
import time
from pathlib import Path

from bandit_run import BANDIT, BASE, POLISH
from test_resume import SIZES, STOPPED, start, step, wait_until
from tiny_run import make_project, promised, run_folder

WARM_UP, PIVOT = 190, 466
RUN = (
    SIZES
    | BASE
    | {
        "firehose__bandit": BANDIT | {"curriculum_warmup_steps": WARM_UP},
        "polish": POLISH | {"at_step": PIVOT, "horizon": 200},
        "samples__halt_after": 0,
    }
)
TURNS = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]


def test_any_stop_at_any_moment(tmp_path: Path) -> None:
    """The promise of the whole project, with everything in the run that the firehose can do."""
    make_project(tmp_path / "whole", **RUN)
    assert start(tmp_path / "whole").wait() == 0
    make_project(tmp_path / "killed", **RUN)
    root, chance, reached = tmp_path / "killed", random.Random(3), 0
    for turn, kind in enumerate(TURNS):
        trainer = start(root, *(["--threads", "1"] if turn % 2 else []), slow=True)
        wait_until(lambda past=reached: step(root) > past, trainer)
        time.sleep(chance.uniform(0, 0.25))
        trainer.send_signal(kind)
        assert trainer.wait() == (-signal.SIGKILL if kind == signal.SIGKILL else STOPPED)
        reached = step(root)
    assert start(root).wait() == 0
    assert promised(root) == promised(tmp_path / "whole")
    assert (run_folder(root) / "archive" / str(PIVOT) / "polish.json").exists()
