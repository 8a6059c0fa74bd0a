"""Fixtures that several files share."""

import pytest
from micro_project import Micro


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    """A micro project whose DAG has run to its end, without an activated environment. Copy it before you change it."""
    micro = Micro.create(tmp_path_factory.mktemp("finished") / "project")
    micro.grow()
    return micro
