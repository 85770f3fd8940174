from __future__ import annotations

import math

import pytest

from workbench.core.text import format_duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (40, "40 s"), (720, "12 min"), (12600, "3.5 h"), (math.nan, "unknown"), (math.inf, "unknown")],
)
def test_durations_are_said_as_a_person_would(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said
