"""What the tests of the bench share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every side do its work once in a turn instead of for 50 ms."""
    # The package's name `contest` is the function, not its module.
    monkeypatch.setattr(sys.modules["workbench.bench.contest"], "_repeats", lambda side, device, clock: 1)
