"""The command line and its small study, as the tests of the command line have them; databases that do not wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import here, study, workbench
from tests.kit.database import without_waiting_for_the_disk

__all__ = ["here", "no_waiting_for_the_disk", "study", "workbench"]


@pytest.fixture
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spare a test the wait for the disk."""
    with without_waiting_for_the_disk():
        yield
