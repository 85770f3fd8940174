"""The Chromium of this machine."""

from __future__ import annotations

import shutil

import pytest


def chromium_or_skip() -> str:
    """Return its path, or skip the test with the command that installs it."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("Chromium is not installed; apt-get install chromium")
    return executable
