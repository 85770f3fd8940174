"""THOR's curvature: which refreshes were done, how it was damped, and what share of the time it took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.core.records import EventKind
from workbench.figures import frames
from workbench.figures.drawing import OVERFLOW, Drawing, Mark, Stroke
from workbench.figures.frames import EventPoints, EventTable, StepTable
from workbench.figures.labels import compact, counted, percent, times
from workbench.figures.theme import BLUE, GREY, ORANGE, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_line, thin_marks, thin_stairs

_QUESTION = "What does the curvature cost, and how is it damped?"
_MAXIMUM_BARS = 400  # more could not be told apart


@dataclass(frozen=True, eq=False)
class SecondOrderNumbers:
    """Numbers behind the picture of a run with THOR.

    How many layers a refresh was for is not known (NaN) while the device has not reported it, or an overflow spoilt it.
    """

    refresh_steps: Floats  # at which the curvature was looked at, thinned
    layers_done: Floats  # layers whose inverses were computed there
    layers_left: Floats  # those that the trace rule left alone, counted against the fullest refresh of the run
    n_refreshes: int  # in the record, drawn or not
    n_done: int  # layers refreshed, over all refreshes
    n_left: int
    damping: Line
    raised: EventPoints  # steps at which blocks of a layer needed more, drawn marks only; the damping in force there
    n_raised: int
    plain: Line  # times of steps without a refresh, milliseconds; times are without warm-up
    slow: Line  # times of steps with a refresh, drawn marks only
    plain_median_ms: float  # NaN when there is none
    slow_median_ms: float
    share: float  # of the whole time, which refreshes took beyond the median step, in [0, 1]; NaN when unknown
    n_steps: int


def second_order_numbers(
    steps: StepTable, events: EventTable = None, *, limit: int = MAXIMUM_POINTS
) -> SecondOrderNumbers:
    """Reduce a run with THOR to what its curvature did and cost; arguments as for ``second_order_figure``."""
    frame, events = frames.steps_frame(steps), frames.events_frame(events)
    step, damping = frames.column(frame, "step"), frames.column(frame, "thor.damping")
    refreshed = frames.flags(frame, "thor.refreshed")
    at = step[refreshed]
    done, left = _layers(events, at)
    bars = thin_marks(np.arange(at.size), _MAXIMUM_BARS)
    raised, n_raised = frames.event_points(events, EventKind.DAMPING_RAISED, lambda at: _looked_up(at, step, damping))
    duration = frames.column(frame, "step_ms")
    timed = np.isfinite(duration) & (np.arange(len(frame)) >= len(frame) - len(frames.without_warm_up(frame)))
    plain, slow = np.flatnonzero(timed & ~refreshed), np.flatnonzero(timed & refreshed)
    usual = float(np.median(duration[plain])) if plain.size else float("nan")
    weights = frames.stands_for(frame)
    whole = float((duration * weights)[timed].sum())
    known = slow.size > 0 and plain.size > 0 and whole > 0
    diamonds = slow[thin_marks(np.arange(slow.size))]
    return SecondOrderNumbers(
        refresh_steps=at[bars],
        layers_done=done[bars],
        layers_left=left[bars],
        n_refreshes=int(weights[refreshed].sum()),
        n_done=int(np.nansum(done)),
        n_left=int(np.nansum(left)),
        damping=thin_stairs(step, damping, limit),
        raised=raised,
        n_raised=n_raised,
        plain=thin_line(step[plain], duration[plain], limit),
        slow=Line(step[diamonds], duration[diamonds]),
        plain_median_ms=usual,
        slow_median_ms=float(np.median(duration[slow])) if slow.size else float("nan"),
        share=float((np.maximum(duration - usual, 0.0) * weights)[slow].sum()) / whole if known else float("nan"),
        n_steps=int(weights.sum()),
    )


def second_order_drawing(
    steps: StepTable,
    events: EventTable = None,
    *,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 620,
) -> Drawing:
    """Draw refreshes, damping and the time of steps, one below the other.

    ``steps`` have the columns ``thor.refreshed`` and ``thor.damping``; events say how many layers a refresh was
    for, and where damping was raised. The times leave the first ten steps out (allocation, the very first refresh)
    where the run is longer than twice that.
    """
    numbers = second_order_numbers(steps, events, limit=limit)
    if not numbers.n_refreshes:
        reason = "No step refreshed any curvature; set optimizer.name to thor to train with it."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    rows = (0.28, 0.3, 0.42)
    drawing = Drawing(_answer(numbers), _details(numbers), theme=theme, height=height, rows=rows)
    _add_refreshes(drawing, numbers)
    hover, stroke = "At step %{x:,} the damping was %{y:.3g}.", Stroke(BLUE, shape="hv")
    drawing.line(numbers.damping, stroke, hover, name="damping in force", showlegend=False, row=2)
    drawing.events(numbers.raised, OVERFLOW, name="damping raised", row=2)
    hover, stroke = "Step %{x:,} took %{y:.3g} ms.", Stroke(GREY, 1.4)
    drawing.line(numbers.plain, stroke, hover, name="step without a refresh", row=3)
    hover, mark = "Step %{x:,}, with a refresh, took %{y:.3g} ms.", Mark("diamond", 8, ORANGE)
    drawing.marks(numbers.slow, mark, hover, name="step with a refresh", row=3)
    drawing.set(barmode="stack")
    drawing.show_legend(96)
    drawing.set_y("Layers", row=1, rangemode="tozero", tickformat=",~f")
    drawing.set_log_y("Damping (log)", numbers.damping.y, row=2)
    drawing.set_y("Time of a step (ms)", row=3, rangemode="tozero")
    drawing.set_steps()
    return drawing


def _layers(events: EventTable, at: Floats) -> tuple[Floats, Floats]:
    """Return how many layers each refresh was for and how many it left alone; NaN where no event tells."""
    refreshed = frames.events_of(events, EventKind.FACTORS_REFRESHED)
    steps, values = (frames.column(refreshed, name).tolist() for name in ("step", "value"))
    counts = dict(zip(steps, values, strict=True))
    done = np.array([counts.get(step, np.nan) for step in at.tolist()], dtype=np.float64)
    fullest = max(counts.values(), default=float("nan"))
    return done, fullest - done


def _looked_up(at: Floats, step: Floats, values: Floats) -> Floats:
    """Return a column's values at some steps; NaN at steps that are not in the record."""
    if not step.size:
        return np.full(at.size, np.nan)
    places = np.minimum(np.searchsorted(step, at), step.size - 1)
    return np.where(step[places] == at, values[places], np.nan)


def _answer(numbers: SecondOrderNumbers) -> str:
    if not np.isfinite(numbers.share):
        return f"The curvature was refreshed {times(numbers.n_refreshes)}"
    return f"Refreshing the curvature took {percent(numbers.share)} of the time"


def _details(numbers: SecondOrderNumbers) -> str:
    parts = []
    if np.isfinite(numbers.share):
        parts.append(
            f"{counted(numbers.n_refreshes, 'refresh', 'refreshes')}: a step with one takes "
            f"{compact(numbers.slow_median_ms)} ms, one without {compact(numbers.plain_median_ms)} ms (medians)"
        )
    if numbers.n_left:
        skipped = numbers.n_left / (numbers.n_done + numbers.n_left)
        parts.append(f"the trace rule skipped {percent(skipped)} of the layers' refreshes")
    parts.append(f"damping raised {times(numbers.n_raised)}" if numbers.n_raised else "damping never had to be raised")
    return "; ".join(parts)


def _add_refreshes(drawing: Drawing, numbers: SecondOrderNumbers) -> None:
    known = np.isfinite(numbers.layers_done)
    gaps = np.diff(numbers.refresh_steps)
    width = 0.6 * float(np.median(gaps)) if gaps.size else max(1.0, 0.02 * numbers.n_steps)
    for name, layers, colour, pattern, hover in (
        ("recomputed", numbers.layers_done, BLUE, "", "In step %{x:,}, %{y} layers were recomputed."),
        ("skipped", numbers.layers_left, ORANGE, "/", "In step %{x:,}, the trace rule skipped %{y} layers."),
    ):
        if not np.nansum(layers):
            continue
        look = {"color": colour, "line": {"width": 0}, "pattern": {"shape": pattern, "size": 5}}
        x, y = numbers.refresh_steps[known], layers[known]
        drawing.add("bar", hover, x=x, y=y, width=width, marker=look, name=name)
    hover = "Step %{x:,} refreshed the curvature; for how many layers is not known."
    x, mark = numbers.refresh_steps[~known], Mark("line-ns-open", 10, GREY, edge=2)
    drawing.marks((x, np.zeros_like(x)), mark, hover, name="refresh of an unknown number of layers")
