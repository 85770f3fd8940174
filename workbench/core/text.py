"""How values are written for people, wherever they are shown."""

from __future__ import annotations

import math


def format_number(value: float | None) -> str:
    """Return a number with four digits; what is not known, NaN, inf or None, in a word."""
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.4g}"


def format_interval(middle: float | None, low: float | None, high: float | None, unit: str = "") -> str:
    """Return a ratio with its interval, such as ``"1.21 x (1.14 to 1.28)"``; without one where there is none."""
    if middle is None or not math.isfinite(middle):
        return "unknown"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return f"{middle:.2f}{unit}"
    return f"{middle:.2f}{unit} ({low:.2f} to {high:.2f})"


def format_duration(seconds: float) -> str:
    """Return a duration as a person says it: ``"40 s"``, ``"12 min"``, ``"3.5 h"``; an unknown one in a word."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90.0:
        return f"{max(seconds, 1.0):.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
