"""Put a run and its results aside, so that the next call trains anew. Nothing is deleted.

runs/<EXP> becomes runs/<EXP>.aside (.aside.2, ...), and results/<EXP> likewise. The data stays as it is.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from andrea.errors import RunError
from andrea.files import storing, sync_folder
from andrea.training.lock import RunLock
from andrea.training.runfolder import free_name

SUFFIX = "aside"


def fresh(name: str, root: Path) -> None:
    """Rename run and results of the experiment `name`. RunError when a trainer is at work or nothing is there."""
    folders = [folder for folder in (root / "runs" / name, root / "results" / name) if folder.is_dir()]
    if not folders:
        raise RunError(
            f"{name} must have a run or results to put aside",
            got=f"neither {root / 'runs' / name} nor {root / 'results' / name}",
            fix=f"just train: .venv/bin/andrea train {name}",
        )
    with ExitStack() as stack:
        if folders[0].parent.name == "runs":
            stack.enter_context(RunLock(folders[0]))
        for folder in folders:
            aside = free_name(folder, SUFFIX)
            with storing(folder):
                os.rename(folder, aside)
                sync_folder(folder.parent)
            print(f"{folder} is kept as {aside}")
