"""Where a gain comes from: a waterfall from the task as given to the whole set-up, one bar per part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.headline import parts_against_total
from workbench.core.records import CandidateRecord, GainPart
from workbench.core.text import format_interval
from workbench.figures.drawing import Drawing, Stroke, interval
from workbench.figures.labels import plain, wrapped
from workbench.figures.theme import BLUE, GREEN, GREY, PURPLE, VERMILLION, Theme, translucent

_QUESTION = "Where does the gain come from?"
_UNMEASURED = "not measured by itself"
_KINDS = (
    ("gain", BLUE, "one part"),
    ("cost", VERMILLION, "one that costs time"),  # such as the margin in the schedule's length
    ("unsure", GREY, "one without a sure effect"),
    ("unmeasured", translucent(BLUE, 0.25), f"one part, {_UNMEASURED}"),
)
_NAME_WIDTH = 26  # characters of a line beside a bar
_BAR_WIDTH = 0.56  # of a row
_MOST_TICKS = 5  # beside a panel's controls there is no room for more


@dataclass(frozen=True, slots=True)
class AttributionBar:
    """One bar, in times the speed of the task as given."""

    name: str
    start: float  # what the parts before it make
    end: float
    low: float  # where it would end at the lower end of its 95 % interval; NaN where it was not measured by itself
    high: float
    text: str  # what it is in a sentence

    @property
    def factor(self) -> float:
        """How many times faster the part makes what stands before it."""
        return self.end / self.start

    @property
    def is_measured(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class AttributionNumbers:
    """Numbers behind the waterfall."""

    parts: tuple[AttributionBar, ...]  # each begins where the one before it ends; the first begins at 1
    total: AttributionBar  # from 1 to the whole
    tuned_plain: float  # how many times faster than the task as given tuned plain is; NaN where it is not known


def attribution_numbers(
    parts: Sequence[GainPart], candidate: CandidateRecord | None = None, tuned_plain: float = math.nan
) -> AttributionNumbers:
    """Set the parts of a gain behind each other; arguments as for ``attribution_figure``."""
    bars, reached = [], 1.0
    for part in parts:
        low, high = reached * part.low, reached * part.high
        bars.append(AttributionBar(part.part, reached, reached * part.factor, low, high, _part_text(part)))
        reached *= part.factor
    if candidate is None or not 0.0 < candidate.speedup < math.inf:
        text = f"All parts together: {reached:.2f} x as fast."
        total = AttributionBar("together", 1.0, reached, math.nan, math.nan, text)
    else:
        ends = candidate.speedup_low, candidate.speedup_high
        speed = format_interval(candidate.speedup, *ends, " x")
        text = f"{plain(candidate.label)}, against the task as given: {speed}, {candidate.verdict}."
        total = AttributionBar(f"together, {candidate.label}", 1.0, candidate.speedup, *ends, text)
    return AttributionNumbers(tuple(bars), total, tuned_plain)


def attribution_drawing(
    parts: Sequence[GainPart],
    candidate: CandidateRecord | None = None,
    tuned_plain: float = math.nan,
    *,
    theme: Theme = "auto",
) -> Drawing:
    """Draw the waterfall from 1 to the total; on its logarithmic axis a bar is as long as its factor is large.

    ``parts``, whose factors are above 0, come in the order in which they are built up from the task as given.
    ``candidate`` is the whole set-up with its measured speed-up, without which the parts are multiplied;
    ``tuned_plain`` is how many times faster than the task as given tuned plain is, left out where NaN.
    """
    if not parts:
        reason = "The parts of this set-up have not been taken out one by one: there was no time for it."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    numbers = attribution_numbers(parts, candidate, tuned_plain)
    bars = (*numbers.parts, numbers.total)
    names = [wrapped(plain(bar.name), _NAME_WIDTH) for bar in bars]
    total = parts_against_total(parts, candidate) or "the factors multiply to the total"
    subtitle = f"a bar is as long as its factor: time without the part / with it; {total}"
    height = 262 + max(40, 20 * max(map(len, names))) * len(bars)
    drawing = Drawing(_answer(parts, numbers.total), subtitle, theme=theme, height=height)
    for effect, colour, name in _KINDS:
        alike = [i for i, part in enumerate(parts) if part.effect == effect]
        _add_bars(drawing, bars, alike, [colour] * len(alike), name)
    _add_bars(drawing, bars, [len(parts)], [GREEN], "all together")
    drawing.add(  # behind the end of each bar and its interval
        "scatter",
        x=[float(np.nanmax([bar.start, bar.end, bar.high])) for bar in bars],
        y=list(range(len(bars))),
        mode="text",
        text=[f" {bar.factor:.2f} x" for bar in bars],
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
    )
    for speed, name, colour, dash in (
        (1.0, "task as given", GREY, "dot"),
        (tuned_plain, "tuned plain", PURPLE, "dash"),
    ):
        if math.isfinite(speed):
            hover = f"{name}, {speed:.2f} x"
            drawing.line(([speed] * 2, [-0.6, len(parts) + 0.6]), Stroke(colour, 1.8, dash), hover, name=hover)
    low, high = _reach(numbers)
    drawing.set_x(
        "Speed (x as given)",
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=_ticks(low, high),
        ticksuffix=" x",
        minor={"ticks": "", "showgrid": False},
    )
    labels = {"tickvals": list(range(len(bars))), "ticktext": ["<br>".join(lines) for lines in names]}
    drawing.set(yaxis={**labels, "range": [len(bars) - 0.4, -0.6], "showgrid": False}, barmode="overlay")
    drawing.show_legend(108)
    return drawing


def _part_text(part: GainPart) -> str:
    measured = f"({_UNMEASURED})" if part.effect == "unmeasured" else f"({part.low:.2f} to {part.high:.2f})"
    alone = f" Left out of the whole set-up: {part.alone:.2f} x." if math.isfinite(part.alone) else ""
    note = f"<br>{plain(part.remark)}" if part.remark else ""
    return f"{plain(part.part)}: {part.factor:.2f} x {measured}.{alone}{note}"


def _answer(parts: Sequence[GainPart], total: AttributionBar) -> str:
    helping = [part for part in parts if part.factor > 1.0 and part.effect != "unsure"]
    if not helping:
        return _QUESTION
    most = max(helping, key=lambda part: part.factor)
    if len(parts) == 1 and most.note:
        return f"The parts of the {total.end:.2f} x were not measured by themselves"
    if len(parts) == 1:
        return f"All of the {total.end:.2f} x comes from {plain(most.part)}"
    if most.effect == "unmeasured":
        return f"{most.factor:.2f} x of the {total.end:.2f} x were not measured part by part"
    # Where others cost time, one part may give more than all together.
    together = f" of {total.end:.2f} x" if most.factor <= total.end else f", all together {total.end:.2f} x"
    return f"{plain(most.part)} gives most: {most.factor:.2f} x{together}"


def _add_bars(
    drawing: Drawing, bars: Sequence[AttributionBar], chosen: Sequence[int], colours: Sequence[str], name: str
) -> None:
    shown = [bars[i] for i in chosen]
    is_measured = any(bar.is_measured for bar in shown)
    drawing.bars(
        ([bar.end - bar.start for bar in shown], list(chosen)),
        list(colours),
        "%{customdata[0]}",
        edge=None if is_measured else BLUE,
        base=[bar.start for bar in shown],
        width=_BAR_WIDTH,  # of its own accord plotly takes the room between the nearest two of a trace
        error_x=interval([bar.end for bar in shown], [bar.low for bar in shown], [bar.high for bar in shown], GREY),
        name=f"{name}, 95 % interval" if is_measured else name,
        customdata=[[bar.text] for bar in shown],
    )


def _reach(numbers: AttributionNumbers) -> tuple[float, float]:
    """Return the ends of the axis, with room for what is written behind the bars."""
    bars = (*numbers.parts, numbers.total)
    values = np.array([1.0, numbers.tuned_plain, *(v for b in bars for v in (b.start, b.end, b.low, b.high))])
    low, high = float(np.nanmin(values[values > 0.0])), float(np.nanmax(values))
    span = max(math.log(high / low), math.log(1.2))
    return low * math.exp(-0.05 * span), high * math.exp(0.3 * span)  # a factor is a fifth as wide as a small plot


def _ticks(low: float, high: float) -> list[float]:
    """Return round speeds between two, about as many as there is room for; 1 among them."""
    fine = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    steps = (fine, fine[::2], (1.0, 1.5, 2.0, 3.0, 5.0), (1.0, 2.0, 5.0), (1.0,))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in steps:
        ticks = [m * 10.0**d for d in decades for m in mantissas if low <= m * 10.0**d <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks
