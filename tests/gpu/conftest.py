"""Tests that need a card: skipped, with the reason, where there is none."""

import warnings
from collections.abc import Iterator

import pytest

from andrea.errors import AndreaError


def missing() -> str:
    """Why no card can be used here; empty when one can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns while it is imported without a driver
            from andrea.engine.cuda.device import Device

            Device()
    except AndreaError as reason:
        return f"{reason.must}, got: {reason.got}"
    return ""


MISSING = missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def card() -> Iterator[object]:
    from card import Card

    return Card()
