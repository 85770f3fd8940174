"""Panels that are closed, whatever happened to the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.panels.looking import our_threads


@pytest.fixture
def keep() -> Iterator[Callable[[Any], Any]]:
    """Return a function that takes a panel and returns it: all are closed after the test, and may leave no thread."""
    with ExitStack() as kept:
        yield kept.enter_context
    assert our_threads() == []
