"""CI lists direct dependencies whose pin is older than a year, and says nothing where the index cannot be asked."""

from __future__ import annotations

import runpy
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "old_pins"))


def days_ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


def test_a_pin_is_old_when_its_release_is_and_a_newer_one_is_there(script: dict[str, Any]) -> None:
    known = {
        "old": {"1.0": days_ago(400), "1.1": days_ago(300), "2.0": days_ago(30)},
        "newest": {"1.0": days_ago(400)},
        "young": {"1.0": days_ago(364), "1.1": days_ago(3)},
        "unknown": {},
        "torch": {"1.0": days_ago(500), "1.1": days_ago(400)},
    }
    pinned = {name: "1.0+cpu" if name == "torch" else "1.0" for name in known}
    assert script["old_pins"](pinned, known.__getitem__, NOW) == [
        "old 1.0 is of 2025-04-27; 2.0 is of 2026-05-02",
        "torch 1.0+cpu is of 2025-01-17; 1.1 is of 2025-04-27",
    ]


def test_an_index_that_cannot_be_asked_or_is_slow_says_nothing(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert script["releases"]("torch", "http://127.0.0.1:9/simple") == {}
    assert script["releases"]("torch", "") == {}
    monkeypatch.setitem(script["old_pins"].__globals__, "SECONDS", 0.2)
    may_answer = threading.Event()

    def late(name: str) -> dict[str, datetime]:
        assert may_answer.wait(60)
        return {"1.0": days_ago(400), "2.0": days_ago(30)}

    assert script["old_pins"]({"a": "1.0"}, late, NOW) == []
    may_answer.set()


def test_direct_dependencies_are_looked_up_and_no_others(script: dict[str, Any]) -> None:
    pinned = script["pins"](ROOT)
    assert pinned["torch"] == "2.13.0"
    assert "scikit-learn" in pinned
    assert "alembic" not in pinned
    assert len(pinned) < 30


def test_what_an_index_says_is_read(script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("thing-1.0-py3-none-any.whl", "2025-01-02T03:04:05Z"), ("thing-1.0.tar.gz", "2024-01-02T03:04:05Z")]
    rows += [("thing-1.0-cp311-cp311-linux.whl", "2025-01-01T00:00:00.5Z"), ("thing-2.0-py3-none-any.whl", None)]
    files = ", ".join(
        f'{{"filename": "{name}"' + (f', "upload-time": "{when}"' if when else "") + "}" for name, when in rows
    )
    page = tmp_path / "page.json"
    page.write_text(f'{{"files": [{files}]}}')
    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: page.open("rb"))
    assert script["releases"]("thing", "https://index/simple") == {
        "1.0": datetime(2025, 1, 1, 0, 0, 0, 500000, tzinfo=UTC)
    }
