"""THOR's curvature: which refreshes were done, how it was damped, and what share of the time it took."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from workbench.core.records import EventKind
from workbench.figures.drawing import Drawing
from workbench.figures.frames import (
    EventTable,
    StepTable,
    column,
    events_frame,
    flags,
    steps_frame,
)
from workbench.figures.labels import (
    compact,
    counted,
    percent,
    plain,
)
from workbench.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Theme,
)
from workbench.figures.thinning import (
    MAXIMUM_POINTS,
    staircase_indices,
    thin_indices,
    thin_marks,
)

__all__ = ["SecondOrderNumbers", "second_order_drawing", "second_order_figure", "second_order_numbers"]

_QUESTION = "What does the curvature cost, and how is it damped?"
_MAXIMUM_BARS = 400  # more could not be told apart
_MAXIMUM_TICKS = 6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SecondOrderNumbers:
    """Numbers behind the picture of a run with THOR.

    Args:
        refresh_steps: Steps at which the curvature was looked at, thinned ``[m]``.
        layers_done: Layers whose inverses were computed anew there; NaN where it is not known, because the device has
            not told yet or because an overflow spoilt the refresh.
        layers_left: Layers that the trace rule left alone there, counted against the fullest refresh of the run; NaN
            likewise.
        n_refreshes: Refreshes in the record, drawn or not.
        n_done: Layers refreshed, over all refreshes.
        n_left: Layers left alone, over all refreshes.
        damping_steps: Steps of the damping's line, thinned.
        damping: Damping in force at those.
        raised_steps: Steps at which blocks of a layer needed more, drawn marks only.
        raised_at: Damping in force at those, for the marks to stand on the line.
        raised_messages: What happened there, one sentence each.
        n_raised: How often that happened.
        plain_steps: Steps without a refresh, thinned, without warm-up.
        plain_ms: Their times, milliseconds.
        slow_steps: Steps with a refresh, drawn marks only, without warm-up.
        slow_ms: Their times, milliseconds.
        plain_median_ms: Median time of a step without a refresh; NaN when there is none.
        slow_median_ms: Median time of a step with one; NaN when there is none.
        share: Share of the whole time that refreshes took beyond the median step, in [0, 1]; NaN when unknown.
        n_steps: Steps in the record.
    """

    refresh_steps: Floats
    layers_done: Floats
    layers_left: Floats
    n_refreshes: int
    n_done: int
    n_left: int
    damping_steps: Floats
    damping: Floats
    raised_steps: Floats
    raised_at: Floats
    raised_messages: tuple[str, ...]
    n_raised: int
    plain_steps: Floats
    plain_ms: Floats
    slow_steps: Floats
    slow_ms: Floats
    plain_median_ms: float
    slow_median_ms: float
    share: float
    n_steps: int


def second_order_numbers(
    steps: StepTable, events: EventTable = None, *, warmup_steps: int = 10, limit: int = MAXIMUM_POINTS
) -> SecondOrderNumbers:
    """Reduce a run with THOR to what its curvature did and cost.

    Args:
        steps: Step table or records with the columns ``thor.refreshed`` and ``thor.damping``.
        events: Event table or records; they say how many layers a refresh was for, and where damping was raised.
        warmup_steps: First steps left out of the times (allocation, the very first refresh); none are when the run is
            no longer than twice that.
        limit: Most points of a line.
    """
    frame, happened = steps_frame(steps), events_frame(events)
    step, damping = column(frame, "step"), column(frame, "thor.damping")
    refreshed = flags(frame, "thor.refreshed")
    at = step[refreshed]
    done, left = _layers(happened, at)
    bars = thin_marks(np.arange(at.size), _MAXIMUM_BARS)
    line = staircase_indices(step, damping, limit)
    raised = happened[happened["kind"].astype(str) == EventKind.DAMPING_RAISED]
    marks = thin_marks(np.arange(len(raised)))
    raised_steps = column(raised, "step")[marks]
    times = column(frame, "step_ms")
    warm = np.arange(len(frame)) >= (warmup_steps if len(frame) > 2 * warmup_steps else 0)
    timed = warm & np.isfinite(times)
    plain, slow = np.flatnonzero(timed & ~refreshed), np.flatnonzero(timed & refreshed)
    usual = float(np.median(times[plain])) if plain.size else float("nan")
    whole = float(times[timed].sum())
    known = slow.size > 0 and plain.size > 0 and whole > 0
    dots = plain[thin_indices(step[plain], times[plain], limit)]
    diamonds = slow[thin_marks(np.arange(slow.size))]
    return SecondOrderNumbers(
        refresh_steps=at[bars],
        layers_done=done[bars],
        layers_left=left[bars],
        n_refreshes=int(at.size),
        n_done=int(np.nansum(done)),
        n_left=int(np.nansum(left)),
        damping_steps=step[line],
        damping=damping[line],
        raised_steps=raised_steps,
        raised_at=_looked_up(raised_steps, step, damping),
        raised_messages=tuple(str(message) for message in raised["message"].iloc[marks]),
        n_raised=len(raised),
        plain_steps=step[dots],
        plain_ms=times[dots],
        slow_steps=step[diamonds],
        slow_ms=times[diamonds],
        plain_median_ms=usual,
        slow_median_ms=float(np.median(times[slow])) if slow.size else float("nan"),
        share=float(np.maximum(times[slow] - usual, 0.0).sum()) / whole if known else float("nan"),
        n_steps=len(frame),
    )


def second_order_figure(
    steps: StepTable,
    events: EventTable = None,
    *,
    warmup_steps: int = 10,
    theme: Theme = "auto",
    height: int = 620,
) -> go.Figure:
    """Return ``second_order_drawing`` as a figure of plotly's.

    Args:
        steps: See ``second_order_numbers``.
        events: See ``second_order_numbers``.
        warmup_steps: See ``second_order_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    return second_order_drawing(steps, events, warmup_steps=warmup_steps, theme=theme, height=height).figure()


def second_order_drawing(
    steps: StepTable,
    events: EventTable = None,
    *,
    warmup_steps: int = 10,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 620,
) -> Drawing:
    """Draw refreshes, damping and the time of steps, one below the other.

    Args:
        steps: See ``second_order_numbers``.
        events: See ``second_order_numbers``.
        warmup_steps: See ``second_order_numbers``.
        limit: See ``second_order_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = second_order_numbers(steps, events, warmup_steps=warmup_steps, limit=limit)
    if not numbers.n_refreshes:
        return Drawing.empty(
            _QUESTION, "No step refreshed any curvature; set optimizer.name to thor to train with it.", theme=theme
        )
    drawing = Drawing(
        _answer(numbers),
        _details(numbers),
        theme=theme,
        height=height,
        row_heights=(0.28, 0.3, 0.42),
        row_spacing=0.05,
    )
    _add_refreshes(drawing, numbers)
    _add_damping(drawing, numbers)
    _add_times(drawing, numbers)
    drawing.set(showlegend=True, barmode="stack", margin={"b": 96})
    drawing.set_y("Layers", row=1, rangemode="tozero", tickformat=",d")
    drawing.set_y("Damping (log)", row=2, **_log_axis(numbers.damping))
    drawing.set_y("Time of a step (ms)", row=3, rangemode="tozero")
    drawing.set_x("Step (micro-batches)", tickformat=",d")
    return drawing


def _layers(events: pd.DataFrame, at: Floats) -> tuple[Floats, Floats]:
    """Return how many layers each refresh was for and how many it left alone; NaN where no event tells."""
    told = events[events["kind"].astype(str) == EventKind.FACTORS_REFRESHED]
    counts = dict(zip(column(told, "step").tolist(), column(told, "value").tolist(), strict=True))
    done = np.array([counts.get(step, np.nan) for step in at.tolist()], dtype=np.float64)
    fullest = max(counts.values(), default=float("nan"))
    return done, fullest - done


def _looked_up(at: Floats, step: Floats, values: Floats) -> Floats:
    """Return a column's values at some steps; NaN at steps that are not in the record."""
    if not step.size:
        return np.full(at.size, np.nan)
    places = np.minimum(np.searchsorted(step, at), step.size - 1)
    return np.where(step[places] == at, values[places], np.nan)


def _log_axis(values: Floats) -> dict[str, Any]:
    """Return a log axis that ends at 1, 2 or 5, with a few ticks there or at powers of ten, written as numbers."""
    good = values[np.isfinite(values) & (values > 0)]
    if not good.size:
        return {}
    powers = range(math.floor(math.log10(good.min())) - 1, math.ceil(math.log10(good.max())) + 2)
    steps = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    low, high = max(x for x in steps if x < good.min()), min(x for x in steps if x > good.max())
    ticks = [x for x in steps if low <= x <= high]
    decades = [x for x in ticks if math.log10(x).is_integer()]
    if len(ticks) > _MAXIMUM_TICKS:
        ticks = decades[:: -(-len(decades) // _MAXIMUM_TICKS)]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [compact(tick) for tick in ticks],
        "range": [math.log10(low), math.log10(high)],
    }


def _answer(numbers: SecondOrderNumbers) -> str:
    if not np.isfinite(numbers.share):
        return f"The curvature was refreshed {_times(numbers.n_refreshes)}"
    return f"Refreshing the curvature took {percent(numbers.share)} of the time"


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, counted(n, "time"))


def _details(numbers: SecondOrderNumbers) -> str:
    parts = []
    if np.isfinite(numbers.share):
        parts.append(
            f"{counted(numbers.n_refreshes, 'refresh', 'refreshes')}: a step with one takes "
            f"{compact(numbers.slow_median_ms)} ms, one without {compact(numbers.plain_median_ms)} ms (medians)"
        )
    if numbers.n_left:
        skipped = numbers.n_left / (numbers.n_done + numbers.n_left)
        parts.append(f"the trace rule left {percent(skipped)} of the layers' refreshes out")
    parts.append(f"damping raised {_times(numbers.n_raised)}" if numbers.n_raised else "damping never had to be raised")
    return "; ".join(parts)


def _add_refreshes(drawing: Drawing, numbers: SecondOrderNumbers) -> None:
    known = np.isfinite(numbers.layers_done)
    kinds = (
        ("computed anew", numbers.layers_done, BLUE, "", "In step %{x:,}, %{y} layers were computed anew."),
        ("left alone", numbers.layers_left, ORANGE, "/", "In step %{x:,} the trace rule left %{y} layers alone."),
    )
    gaps = np.diff(numbers.refresh_steps)
    width = 0.6 * float(np.median(gaps)) if gaps.size else max(1.0, 0.02 * numbers.n_steps)
    for name, layers, colour, pattern, sentence in kinds:
        if not known.any() or not np.nansum(layers):
            continue
        drawing.add_bar(
            x=numbers.refresh_steps[known],
            y=layers[known],
            width=width,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": pattern, "size": 5}},
            name=name,
            hovertemplate=sentence + "<extra></extra>",
            row=1,
        )
    if not known.all():
        drawing.add_scatter(
            x=numbers.refresh_steps[~known],
            y=np.zeros(int((~known).sum())),
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 10, "color": GREY, "line": {"width": 2}},
            name="refresh without a word",
            hovertemplate="Step %{x:,} looked at the curvature; how many layers used it is not known.<extra></extra>",
            row=1,
        )


def _add_damping(drawing: Drawing, numbers: SecondOrderNumbers) -> None:
    drawing.add_scatter(
        x=numbers.damping_steps,
        y=numbers.damping,
        mode="lines",
        line={"shape": "hv", "color": BLUE, "width": 2},
        name="damping in force",
        hovertemplate="At step %{x:,} the damping was %{y:.3g}.<extra></extra>",
        showlegend=False,
        row=2,
    )
    if numbers.raised_steps.size:
        drawing.add_scatter(
            x=numbers.raised_steps,
            y=numbers.raised_at,
            mode="markers",
            marker={"symbol": "x", "size": 9, "color": VERMILLION},
            name="damping raised",
            customdata=[[plain(_sentence(message))] for message in numbers.raised_messages],
            hovertemplate="%{customdata[0]}<extra></extra>",
            row=2,
        )


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}."


def _add_times(drawing: Drawing, numbers: SecondOrderNumbers) -> None:
    drawing.add_scatter(
        x=numbers.plain_steps,
        y=numbers.plain_ms,
        mode="lines",
        line={"color": GREY, "width": 1.4},
        name="step without a refresh",
        hovertemplate="Step %{x:,} took %{y:.3g} ms.<extra></extra>",
        row=3,
    )
    drawing.add_scatter(
        x=numbers.slow_steps,
        y=numbers.slow_ms,
        mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": ORANGE},
        name="step with a refresh",
        hovertemplate="Step %{x:,}, with a refresh, took %{y:.3g} ms.<extra></extra>",
        row=3,
    )
