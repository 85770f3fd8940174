"""Where a gain comes from, as rows of a table with bars made of characters."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.core.records import CandidateRecord, GainPart

Row = tuple[str, str, str, str]

_WIDTH = 24  # characters from the smallest speed to the largest; 80 hold a whole row
_FULL, _LIGHT = "█", "░"


def waterfall_rows(parts: Sequence[GainPart], candidate: CandidateRecord | None = None) -> list[Row]:
    """Return a row per part and one for the whole: bar, factor, interval, and what it is.

    Bars are on a logarithmic scale, each beginning where the one before it ends, in the order in which parts are built
    up; a part that was not measured by itself has a light bar. Without a candidate with a measured speed-up the whole
    is the product of the parts.
    """
    if candidate is not None and not 0.0 < candidate.speedup < math.inf:
        candidate = None
    ends = list(accumulate((math.log(part.factor) for part in parts), initial=0.0))
    whole = ends[-1] if candidate is None else math.log(candidate.speedup)
    low, high = min(0.0, whole, *ends), max(0.0, whole, *ends)
    scale = _WIDTH / (high - low) if high > low else 0.0
    full, light = _blocks()

    def bar(start: float, end: float, block: str) -> str:
        first, last = sorted((round((start - low) * scale), round((end - low) * scale)))
        return " " * min(first, _WIDTH - 1) + block * max(last - first, 1)

    rows: list[Row] = []
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        interval = _interval(part.low, part.high)
        drawn = bar(start, end, full if interval else light)
        told = f"{part.part}: {part.remark}" if part.remark else part.part
        rows.append((drawn, f"{part.factor:.2f} x", interval or "not by itself", told))
    interval = "" if candidate is None else _interval(candidate.speedup_low, candidate.speedup_high)
    rows.append((bar(0.0, whole, full), f"{math.exp(whole):.2f} x", interval, "all together"))
    return rows


def _interval(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}" if math.isfinite(low) and math.isfinite(high) else ""


def _blocks() -> tuple[str, str]:
    try:
        f"{_FULL}{_LIGHT}".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return "#", "."
    return _FULL, _LIGHT
