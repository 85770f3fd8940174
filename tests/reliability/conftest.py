"""The command line and its small study, as the tests of the command line have them; databases that do not wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.cli.conftest import here, study, workbench

__all__ = ["here", "no_waiting_for_the_disk", "study", "workbench"]


@pytest.fixture
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spare this process the wait for the disk at every commit; it is not killed, and no disk is full."""

    def hurry(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    yield
    event.remove(Engine, "connect", hurry)
