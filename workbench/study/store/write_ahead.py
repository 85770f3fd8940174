"""How a study's SQLite file takes many small commits without waiting for the disk at each.

In SQLite's usual mode a commit waits several times for the disk. While ``tune`` runs the file is in write-ahead mode: a
commit appends to ``study.db-wal``, and a killed process loses nothing that was committed; a loss of power may take the
last commits, never the file (SQLite, "Write-Ahead Logging" and "PRAGMA synchronous"). Afterwards it is one plain file
again, which can be copied, and read from a folder that cannot be written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError


@contextlib.contextmanager
def writing_ahead(engine: Engine) -> Iterator[None]:
    """Keep a SQLite file in write-ahead mode for the block; where the system has no shared memory, its mode stays."""
    _ask_for(engine, "WAL")
    try:
        yield
    finally:
        # Refused while another program has it open, say a dashboard: then it stays, and the next study ends it.
        _ask_for(engine, "DELETE")


def follow_journal_mode(engine: Engine) -> None:
    """Let every new connection to a file in write-ahead mode wait for the disk at checkpoints only."""

    def connected(connection: Any, _record: Any) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            connection.execute("PRAGMA synchronous=NORMAL")

    if engine.name == "sqlite":
        event.listen(engine, "connect", connected)


def _ask_for(engine: Engine, mode: str) -> None:
    if engine.name == "sqlite":
        engine.dispose()  # the mode can only be left by the last connection, and each new one looks at it
        with contextlib.suppress(DBAPIError), engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA journal_mode={mode}")
        engine.dispose()
