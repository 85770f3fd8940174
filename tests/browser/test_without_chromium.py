"""On a machine without Chromium the browser tests are skipped, and the reason says what installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.system_chromium import chromium_or_skip


def test_the_reason_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium_or_skip()
