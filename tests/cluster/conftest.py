"""A real PostgreSQL for the tests of this folder, and how often the kill tests are repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from studies.reliability.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a running PostgreSQL, one for all tests of a process, or skip with the command that installs it."""
    pytest.importorskip("psycopg", reason='psycopg is not installed; pip install "boost-workbench[cluster]"')
    from studies.reliability.postgres import PostgresServer, find_binaries

    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed; apt-get install postgresql")
    with PostgresServer(binaries) as server:
        yield server


@pytest.fixture
def kill_repetitions() -> int:
    """Return how many times the kill tests kill: ``WORKBENCH_KILL_REPETITIONS``, a few by default."""
    return int(os.environ.get("WORKBENCH_KILL_REPETITIONS", "3"))
