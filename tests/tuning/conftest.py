"""What the tests of studies share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event


@pytest.fixture(scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spare this process the wait for the disk; it is not killed. Those that are have a connection like the user's."""

    def hurry(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    yield
    event.remove(Engine, "connect", hurry)
