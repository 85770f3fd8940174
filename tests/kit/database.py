"""Databases and files of tests, which wait for no disk and are opened fast; and databases of earlier versions."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event

_read_scripts = ScriptDirectory.from_config
_scripts: dict[str | None, ScriptDirectory] = {}


def _scripts_of(config: Config) -> ScriptDirectory:
    """Return the scripts that change old databases, which Optuna reads whenever one is opened; read once here."""
    place = config.get_main_option("script_location")
    if place not in _scripts:
        _scripts[place] = _read_scripts(config)
    return _scripts[place]


@contextmanager
def without_waiting_for_the_disk() -> Iterator[None]:
    """Spare this process the wait at every commit and file; processes that it starts wait like the user's."""

    def hurry(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):  # PostgreSQL has no such word
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(ScriptDirectory, "from_config", _scripts_of)
        yield
    event.remove(Engine, "connect", hurry)


def without_seals(folder: Path) -> None:
    """Leave a study's database as an earlier version wrote it: without checksums."""
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        database.execute("DELETE FROM trial_system_attributes WHERE key = 'crc32'")
        database.execute("DELETE FROM study_user_attributes WHERE key LIKE 'crc32 of %'")
