"""On a machine without Chromium the browser tests are skipped, and the reason says what installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_reason_names_the_command(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "browser", "-p", "no:cacheprovider", "tests/browser/test_view.py"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "apt-get install chromium" in ran.stdout
    assert "4 skipped" in ran.stdout
    assert "passed" not in ran.stdout
