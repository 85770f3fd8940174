"""Whether a study's SQLite file has changed since it was last read, asked in some microseconds.

An answer asks for the same trials and attributes dozens of times, and each reading of them by SQLAlchemy takes
milliseconds. SQLite counts the commits that others than the asking connection have made (SQLite, "PRAGMA
data_version"), so a connection that never writes learns of all, those of this process and of others alike.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

from sqlalchemy import Engine, event


class ChangeDetector:
    """Notices whether an engine's database has changed; one that is not a SQLite file always seems to have.

    Its connection is closed together with the engine's: the journal mode can be changed only while no other is open.
    """

    def __init__(self, engine: Engine) -> None:
        self._path = Path(engine.url.database or "") if engine.name == "sqlite" else None
        self._connection: sqlite3.Connection | None = None
        self._opened: object = None  # tells the connection from those before it
        self._file = (0, 0)  # device and number of the file, which may be replaced by another
        self._lock = threading.RLock()
        event.listen(engine, "engine_disposed", self._close)

    def state(self) -> object:
        """Return what is equal for two calls between which nothing was committed, and unequal otherwise."""
        if self._path is not None:
            with self._lock, contextlib.suppress(OSError, sqlite3.Error):
                found = self._path.stat()
                if self._connection is None or self._file != (found.st_dev, found.st_ino):
                    self._open(self._path, found)
                assert self._connection is not None
                return self._opened, self._connection.execute("PRAGMA data_version").fetchone()
        return object()

    def _open(self, path: Path, found: os.stat_result) -> None:
        self._close()
        self._file, self._opened = (found.st_dev, found.st_ino), object()
        # Do not create a missing file, nor wait for a locked one: the next reader will.
        address = f"{path.absolute().as_uri()}?mode=rw"
        self._connection = sqlite3.connect(address, uri=True, timeout=0, check_same_thread=False)

    def _close(self, _engine: Engine | None = None) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
