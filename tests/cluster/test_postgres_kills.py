"""kill -9 of worker, driver and database at random moments: nothing finished is lost, nothing counts twice.

``WORKBENCH_KILL_REPETITIONS=20 pytest -m cluster tests/cluster/test_postgres_kills.py`` kills more often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.reliability.postgres import PostgresServer
from tests.cluster import kills
from workbench.study.store.storage import default_storage

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORKBENCH_GRACE_SECONDS", "20")
    yield
    kills.opened.cache_clear()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_workers_that_are_killed_lose_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, kill_repetitions: int
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", kill_repetitions)
    witness = kills.Witness(directory, _database(kind, directory, request))
    kills.kill_workers(witness, kill_repetitions, random.Random(1))


@pytest.mark.parametrize(("kind", "jobs"), [("sqlite", 2), ("postgresql", 1)])
def test_a_driver_that_is_killed_loses_nothing(
    kind: str, jobs: int, request: pytest.FixtureRequest, tmp_path: Path, kill_repetitions: int
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", kill_repetitions)
    witness = kills.Witness(directory, _database(kind, directory, request))
    kills.kill_driver(witness, kill_repetitions, random.Random(2), jobs)


def test_a_database_that_is_killed_loses_nothing(
    postgres: PostgresServer, tmp_path: Path, kill_repetitions: int
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", kill_repetitions)
    witness = kills.Witness(directory, postgres.new_database())
    kills.kill_database(witness, kill_repetitions, random.Random(3), postgres)


def _database(kind: str, directory: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return default_storage(directory)
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
