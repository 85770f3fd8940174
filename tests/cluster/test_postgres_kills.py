"""kill -9 of worker, driver and database at random moments: nothing finished is lost, nothing counts twice.

``WORKBENCH_KILL_REPETITIONS=20 pytest -m cluster tests/cluster/test_postgres_kills.py`` kills more often.
"""

from __future__ import annotations

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
@pytest.mark.parametrize("who", ["workers", "driver"])
def test_whoever_is_killed_loses_nothing(
    kind: str, who: str, request: pytest.FixtureRequest, tmp_path: Path, kill_repetitions: int
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", kill_repetitions)
    url = default_storage(directory) if kind == "sqlite" else request.getfixturevalue("postgres").new_database()
    witness = kills.Witness(directory, url)
    if who == "workers":
        kills.kill_and_replace(witness, kill_repetitions, 1, 2, kills.work, directory, url)
    else:
        jobs = 2 if kind == "sqlite" else 1
        kills.kill_and_replace(witness, kill_repetitions, 2, 1, kills.drive, directory, url, jobs)


def test_a_database_that_is_killed_loses_nothing(
    postgres: PostgresServer, tmp_path: Path, kill_repetitions: int
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", kill_repetitions)
    witness = kills.Witness(directory, postgres.new_database())
    kills.kill_database(witness, kill_repetitions, 3, postgres)
