"""Small still pictures for README pages: points with intervals on labelled axes, as SVG text.

The report's figures live in a browser and weigh megabytes; a still picture of them needs an exporter and a browser.
What a result folder shows beside its tables is dots and lines, which are a few lines of SVG each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Panel", "Point", "chart"]

_WIDTH, _HEIGHT = 360, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 34, 46
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
    """One pair of axes, labelled with units; points that do not fit on them are left out.

    ``lines`` are straight, each from (x, y) to (x, y).
    """

    title: str
    x_label: str
    y_label: str
    points: Sequence[Point]
    lines: Sequence[tuple[Ends, Ends]] = ()
    log_x: bool = False


def chart(panels: Sequence[Panel], columns: int = 2, note: str = "") -> str:
    """Return panels side by side as one SVG document; the note below says what the colours mean."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width, height = columns * _WIDTH, rows * _HEIGHT + (24 if note else 6)
    parts = [
        f'<g transform="translate({index % columns * _WIDTH} {index // columns * _HEIGHT})">{_drawn(panel)}</g>'
        for index, panel in enumerate(panels)
    ]
    if note:
        parts.append(f'<text x="{width / 2:.0f}" y="{height - 8}" text-anchor="middle">{escape(note)}</text>')
    # Mid-grey text is readable on a light page and on a dark one.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="11" fill="#777">\n' + "\n".join(parts) + "\n</svg>\n"
    )


class _Axis:
    """Places values of one axis on the page."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, log: bool = False) -> None:
        self.log = log
        placed = [math.log10(value) if log else value for value in values]
        low, high = min(placed), max(placed)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
        self._low, self._high = low - margin, high + margin
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        placed = math.log10(value) if self.log else value
        return self._begin + (placed - self._low) / (self._high - self._low) * (self._end - self._begin)

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


def _drawn(panel: Panel) -> str:
    points = [point for point in panel.points if _can_stand(point, panel)]
    head = f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>'
    if not points:
        return head + f'<text x="{_LEFT}" y="60">nothing to show</text>'
    ends = [end for line in panel.lines for end in line]
    across = [value for p in points for value in (p.x, *(p.x_range or ()))] + [end[0] for end in ends]
    upward = [value for p in points for value in (p.y, *(p.y_range or ()))] + [end[1] for end in ends]
    x = _Axis(across, _LEFT, _WIDTH - _RIGHT, log=panel.log_x)
    y = _Axis(upward, _HEIGHT - _BOTTOM, _TOP)
    parts = [head]
    for tick in x.ticks():
        at = f"{x(tick):.1f}"
        parts.append(f'<path d="M{at} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#8884"/>')
        parts.append(f'<text x="{at}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks():
        at = f"{y(tick):.1f}"
        parts.append(f'<path d="M{_LEFT} {at}H{_WIDTH - _RIGHT}" stroke="#8884"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{tick:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(panel.x_label)}</text>')
    parts.append(
        f'<text transform="translate(13 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>"
    )
    for (x1, y1), (x2, y2) in panel.lines:
        parts.append(
            f'<path d="M{x(x1):.1f} {y(y1):.1f}L{x(x2):.1f} {y(y2):.1f}" stroke="#888" stroke-dasharray="4 3"/>'
        )
    for point in points:
        color = _COLORS[point.color]
        at_x, at_y = f"{x(point.x):.1f}", f"{y(point.y):.1f}"
        if point.x_range is not None:
            low, high = (f"{x(end):.1f}" for end in point.x_range)
            parts.append(f'<path d="M{low} {at_y}H{high}" stroke="{color}" stroke-opacity=".6"/>')
        if point.y_range is not None:
            low, high = (f"{y(end):.1f}" for end in point.y_range)
            parts.append(f'<path d="M{at_x} {low}V{high}" stroke="{color}" stroke-opacity=".6"/>')
        title = f"<title>{escape(point.text)}</title>" if point.text else ""
        parts.append(f'<circle cx="{at_x}" cy="{at_y}" r="4" fill="{color}" fill-opacity=".75">{title}</circle>')
    return "".join(parts)


def _can_stand(point: Point, panel: Panel) -> bool:
    across = [point.x, *(point.x_range or ())]
    is_finite = all(map(math.isfinite, [*across, point.y, *(point.y_range or ())]))
    return is_finite and (not panel.log_x or min(across) > 0.0)
