"""The study's file is in write-ahead mode while a study runs, and one plain file before and after."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from workbench.study.store.write_ahead import follow_journal_mode, writing_ahead


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'study.db'}", connect_args={"timeout": 5})
    event.listen(made, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=FULL"))  # as a user's is
    follow_journal_mode(made)
    with made.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE kept (value INTEGER)")
    yield made
    made.dispose()


def mode_of(engine: Engine) -> tuple[str, int]:
    """Return the journal mode and how often a commit waits for the disk (2: always, 1: at checkpoints)."""
    with engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        return mode, connection.exec_driver_sql("PRAGMA synchronous").scalar_one()


def test_it_is_ahead_in_the_block_and_plain_after_it_however_it_ended(engine: Engine, tmp_path: Path) -> None:
    assert mode_of(engine) == ("delete", 2)
    with writing_ahead(engine):
        assert mode_of(engine) == ("wal", 1)
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO kept VALUES (1)")
    assert mode_of(engine) == ("delete", 2)
    with pytest.raises(KeyboardInterrupt), writing_ahead(engine):
        raise KeyboardInterrupt
    assert mode_of(engine) == ("delete", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT value FROM kept").scalar_one() == 1


def test_who_reads_it_meanwhile_sees_every_commit_and_only_delays_the_way_back(engine: Engine, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "study.db")) as dashboard:
        with writing_ahead(engine):
            with engine.begin() as connection:
                connection.exec_driver_sql("INSERT INTO kept VALUES (1)")
                assert dashboard.execute("SELECT count(*) FROM kept").fetchone() == (0,)
            assert dashboard.execute("SELECT count(*) FROM kept").fetchone() == (1,)
        assert mode_of(engine)[0] == "wal"
    with writing_ahead(engine):
        pass
    assert mode_of(engine)[0] == "delete"


def test_what_was_committed_is_there_when_the_writer_was_killed(engine: Engine, tmp_path: Path) -> None:
    with writing_ahead(engine):
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO kept VALUES (1)")
        killed = {path.name: path.read_bytes() for path in tmp_path.iterdir()}  # what a kill would leave behind
    assert "study.db-wal" in killed
    found = tmp_path / "found"
    found.mkdir()
    for name, content in killed.items():
        if name != "study.db-shm":
            (found / name).write_bytes(content)
    with closing(sqlite3.connect(found / "study.db")) as later:
        assert later.execute("SELECT value FROM kept").fetchall() == [(1,)]


def test_other_databases_are_left_alone() -> None:
    class Elsewhere:
        name = "postgresql"

    with writing_ahead(Elsewhere()):  # type: ignore[arg-type]  # any use of it would fail
        follow_journal_mode(Elsewhere())  # type: ignore[arg-type]
