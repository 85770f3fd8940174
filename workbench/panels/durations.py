"""Durations as a person says them."""

from __future__ import annotations

import math

__all__ = ["duration_text"]


def duration_text(seconds: float) -> str:
    """Write a duration: ``"8.2 s"``, ``"3 min 5 s"``, ``"2 h 10 min"``; an unknown one in a word.

    Args:
        seconds: Seconds; NaN when unknown.
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
