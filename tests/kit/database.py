"""Databases of tests that no process is killed in: a commit does not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def without_waiting_for_the_disk() -> Iterator[None]:
    """Spare this process the wait at every commit; processes that it starts have connections like the user's."""

    def hurry(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    try:
        yield
    finally:
        event.remove(Engine, "connect", hurry)
