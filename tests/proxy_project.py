"""A mini project whose engine is a fake, for tests of the training proxy, and its undisturbed run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from tiny_run import NAME, make_project, run_folder

from andrea import proxy
from andrea.engine import open_engine

STOPPED = 75
Setup = Callable[[FakeEngine], None]


class Project:
    """A mini project whose engines are fakes; `setup` prepares the next one."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.engine = root, make_project(root), FakeEngine.__new__(FakeEngine)
        self.setup: Setup = lambda engine: None

    def _open(self, experiment: Any, threads: int) -> FakeEngine:
        self.engine = FakeEngine(experiment)
        self.setup(self.engine)
        return self.engine

    def train(self, **options: Any) -> int:
        with pytest.MonkeyPatch.context() as patch:
            if proxy.open_engine is open_engine:  # unless a test has put something else there
                patch.setattr(proxy, "open_engine", self._open)
            return proxy.train(self.path, root=self.root, **options)

    def signal_at(self, step: int, number: int, *, generating: bool = False) -> None:
        """Send this process a signal while the engine is at `step`."""

        def kill(at: int) -> None:
            if at == step:
                os.kill(os.getpid(), number)

        def setup(engine: FakeEngine) -> None:
            setattr(engine, "on_generate" if generating else "on_step", kill)

        self.setup = setup

    @property
    def checkpoints(self) -> Path:
        return run_folder(self.root) / "checkpoints"

    def history(self) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = json.loads((run_folder(self.root) / f"{NAME}.loss.json").read_text())
        return value

    def log(self) -> str:
        return (run_folder(self.root) / "train.log").read_text()
