"""What the tests of studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.database import without_waiting_for_the_disk


@pytest.fixture(scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spare the tests of a module the wait for the disk."""
    with without_waiting_for_the_disk():
        yield
