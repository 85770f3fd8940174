"""Databases of tests: commits that wait for no disk, where no process is killed; and those of earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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


def without_seals(folder: Path) -> None:
    """Leave a study's database as an earlier version wrote it: without checksums."""
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        database.execute("DELETE FROM trial_system_attributes WHERE key = 'crc32'")
        database.execute("DELETE FROM study_user_attributes WHERE key LIKE 'crc32 of %'")
