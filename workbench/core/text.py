"""How values are written for people, wherever they are shown."""

from __future__ import annotations

import math

__all__ = ["format_duration"]


def format_duration(seconds: float) -> str:
    """Return a duration as a person says it: ``"40 s"``, ``"12 min"``, ``"3.5 h"``; an unknown one in a word.

    Args:
        seconds: Seconds; less than one counts as one, NaN or inf is unknown.
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90.0:
        return f"{max(seconds, 1.0):.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
