"""Small still pictures for README pages: points with intervals on labelled axes, as SVG text.

The report's figures live in a browser and weigh megabytes; a still picture of them needs an exporter and a browser.
What a result folder shows beside its tables is dots and lines, which are a few lines of SVG each (``chart.svg.j2``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.report.page import render

_WIDTH, _HEIGHT = 360, 270  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, _WIDTH - 14, 34, _HEIGHT - 46  # of its axes
_COLORS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "grey": "#8a8a8a"}

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """One dot, with the ends of its intervals; its text is shown where the pointer rests."""

    x: float
    y: float
    x_range: Ends | None = None
    y_range: Ends | None = None
    color: str = "blue"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes, labelled with units; points that do not fit on them are left out."""

    title: str
    x_label: str
    y_label: str
    points: Sequence[Point]
    lines: Sequence[tuple[Ends, Ends]] = ()  # straight ones, each from (x, y) to (x, y)
    log_x: bool = False


def chart(panels: Sequence[Panel], note: str = "") -> str:
    """Return panels side by side, two in a row, as one SVG document; the note below explains the colours."""
    columns = min(2, len(panels))
    return render(
        "chart.svg.j2",
        panels=[_placed(panel) for panel in panels],
        columns=columns,
        note=note,
        width=columns * _WIDTH,
        height=-(-len(panels) // columns) * _HEIGHT + (24 if note else 6),
        colors=_COLORS,
        w=_WIDTH,
        h=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
    )


def _placed(panel: Panel) -> tuple[Panel, list[Point], Any, Any]:
    """Return a panel with the points that fit on its axes, and these axes; None if there is no point."""
    points = [point for point in panel.points if _can_stand(point, panel)]
    if not points:
        return panel, [], None, None
    ends = [end for line in panel.lines for end in line]
    across = [value for p in points for value in (p.x, *(p.x_range or ()))] + [end[0] for end in ends]
    upward = [value for p in points for value in (p.y, *(p.y_range or ()))] + [end[1] for end in ends]
    return panel, points, _Axis(across, _LEFT, _RIGHT, log=panel.log_x), _Axis(upward, _BOTTOM, _TOP)


class _Axis:
    """Places values of one axis on the page."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, log: bool = False) -> None:
        self.log = log
        placed = [math.log10(value) if log else value for value in values]
        low, high = min(placed), max(placed)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
        self._low, self._high = low - margin, high + margin
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> str:
        placed = math.log10(value) if self.log else value
        share = (placed - self._low) / (self._high - self._low)
        return f"{self._begin + share * (self._end - self._begin):.1f}"

    def ticks(self) -> list[float]:
        span = self._high - self._low
        if self.log and span > 1.0:
            decades = max(1, round(span / 4))
            return [10.0**power for power in range(math.ceil(self._low), math.floor(self._high) + 1, decades)]
        low, high = (10.0**self._low, 10.0**self._high) if self.log else (self._low, self._high)
        rough = (high - low) / 5.5
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
        return [round(index * step, 10) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _can_stand(point: Point, panel: Panel) -> bool:
    across = [point.x, *(point.x_range or ())]
    is_finite = all(map(math.isfinite, [*across, point.y, *(point.y_range or ())]))
    return is_finite and (not panel.log_x or min(across) > 0.0)
