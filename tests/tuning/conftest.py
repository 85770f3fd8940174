"""A study that has run to its end, for all tests that read one; and the command line, as its own tests have it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import here, workbench
from tests.tuning.ended_study import Ended, ended

__all__ = ["here", "whole", "workbench"]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return a study of ten trials, confirmed and exported, for reading only."""
    return ended(tmp_path_factory.mktemp("whole") / "s")
