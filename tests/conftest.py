"""Fixtures that several files share."""

import signal
from pathlib import Path

import pytest
from micro_project import Micro
from proxy_project import Project
from tiny_run import promised

from andrea.engine.cuda import nvrtc
from andrea.errors import AndreaError

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, also by the trainers that tests stop with it


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    """A micro project whose DAG has run to its end, without an activated environment. Copy it before you change it."""
    micro = Micro.create(tmp_path_factory.mktemp("finished") / "project")
    micro.grow()
    return micro


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A mini project whose engines are fakes."""
    return Project(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of what its run leaves when nothing disturbs it."""
    other = Project(tmp_path_factory.mktemp("undisturbed"))
    assert other.train() == 0
    return promised(other.root)


@pytest.fixture
def compiler() -> None:
    """Skips a test where NVRTC is not installed."""
    try:
        nvrtc.version()
        nvrtc.headers()
    except AndreaError as reason:
        pytest.skip(f"{reason.must}: {reason.got}")
