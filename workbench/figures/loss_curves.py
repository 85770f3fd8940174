"""Loss curves: training loss and evaluation metric of selected runs, against step or relative time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from workbench.figures.drawing import OVERFLOW, Drawing, Stroke
from workbench.figures.frames import StepTable, column, flags, stands_for, steps_frame
from workbench.figures.labels import MetricScale, counted, plain
from workbench.figures.theme import COLORWAY, DASHES, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_line, thin_marks

Axis: TypeAlias = Literal["step", "seconds", "relative_time"]

LOSS_CURVE_COLUMNS = ("step", "seconds", "loss", "overflow")
"""Columns of a run's steps that its curves are drawn from."""

_QUESTION = "Do the runs learn equally well?"
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon")
# Axis -> its title, and how hover text says a place on it.
_AXES: dict[str, tuple[str, str]] = {
    "step": ("Step (batches)", "at step %{x:,}"),
    "seconds": ("Time since the run began (s)", "after %{x:.4g} s"),
    "relative_time": ("Relative time (O0 steps)", "at relative time %{x:,.4g}"),
}


@dataclass(frozen=True, eq=False)
class RunCurve:
    """One run to draw."""

    label: str
    steps: StepTable
    evaluations: Sequence[tuple[int, float]] = ()  # (micro-batches done, metric in the task's unit)
    relative_step_time: float = 1.0  # step time / step time of O0, for the axis of relative time


@dataclass(frozen=True, eq=False)
class LossCurveNumbers:
    """Numbers behind one run's curves."""

    label: str
    loss: Line  # running mean over `window` steps, thinned
    window: int
    overflow: Line  # the drawn loss where the run overflowed
    metric: Line  # in the shown unit


def loss_curve_numbers(
    run: RunCurve,
    *,
    x: Axis = "step",
    window: int | None = None,
    metric: MetricScale | None = None,
    limit: int = MAXIMUM_POINTS,
) -> LossCurveNumbers:
    """Reduce one run to its curves; arguments as for ``loss_curves_figure``."""
    frame = steps_frame(run.steps)
    step, loss = column(frame, "step"), column(frame, "loss")
    span = max(1, len(frame) // 100) if window is None else window
    if span < 1:
        raise ValueError(f"`window` must be at least 1, got {window}")
    step_length = run.relative_step_time if x == "relative_time" else 1.0
    positions = column(frame, "seconds") if x == "seconds" else step * step_length
    smooth = _running_mean(loss, span)
    overflow = thin_marks(np.flatnonzero(flags(frame, "overflow") & np.isfinite(smooth)))
    at, values = np.array(run.evaluations, dtype=np.float64).reshape(-1, 2).T
    # After k micro-batches the last one was number k - 1.
    evaluation_x = np.interp(at - 1, step, positions) if x == "seconds" and step.size else at * step_length
    return LossCurveNumbers(
        label=run.label,
        loss=thin_line(positions, smooth, limit),
        window=round(span * stands_for(frame).mean()) if window is None and len(frame) else span,
        overflow=Line(positions[overflow], smooth[overflow]),
        metric=Line(evaluation_x, values * (metric.factor if metric else 1.0)),
    )


def loss_curves_drawing(
    runs: Sequence[RunCurve],
    *,
    x: Axis = "step",
    metric: MetricScale | None = None,
    loss_unit: str = "nats",
    window: int | None = None,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 560,
) -> Drawing:
    """Draw training loss above and evaluation metric below, on one x axis; a row without data is left out.

    ``x`` counts micro-batches, wall-clock seconds, or relative time: micro-batches x relative step time, so that
    one unit is one O0 step. ``window`` is of how many steps the loss is a running mean, None for a hundredth of the
    run; without ``metric`` the values stay as they are.
    """
    curves = [loss_curve_numbers(run, x=x, window=window, metric=metric, limit=limit) for run in runs]
    curves = [curve for curve in curves if curve.loss.x.size or curve.metric.x.size]
    if not curves:
        return Drawing.empty(_QUESTION, "No run has recorded a step yet.", theme=theme)
    shown = metric or MetricScale("metric")
    trained, evaluated = any(curve.loss.x.size for curve in curves), any(curve.metric.x.size for curve in curves)
    n_rows = trained + evaluated
    widest = max(curve.window if curve.loss.x.size else 1 for curve in curves)
    smoothing = [f"the loss is a running mean over {counted(widest, 'step')}"] if widest > 1 else []
    runs_said = [counted(len(curves), "run")] if len(curves) > 1 else []
    drawing = Drawing(
        _QUESTION if len(curves) > 1 else f"How did {plain(curves[0].label)} learn?",
        "; ".join([*runs_said, *smoothing]),
        theme=theme,
        height=height if n_rows == 2 else height * 2 // 3,
        rows=(1.0,) * n_rows,
    )
    title, where = _AXES[x]
    for index, curve in enumerate(curves):
        _add_curve(drawing, curve, index, where, shown.shown_unit, n_rows)
    drawing.set(hovermode="x unified" if len(curves) > 1 else "closest")
    if len(drawing.traces) > n_rows:  # else all lines are of the one run that the title names
        drawing.show_legend(96)
    else:
        drawing.set(showlegend=False)
    if trained:
        drawing.set_y(f"Training loss ({loss_unit})")
    if evaluated:
        drawing.set_y(shown.title, row=n_rows)
    if x == "step":
        drawing.set_steps()
    else:
        drawing.set_x(title)
    return drawing


def _running_mean(values: Floats, window: int) -> Floats:
    """Mean over those of the last ``window`` values that are finite; NaN where the value itself is not finite."""
    good = np.isfinite(values)
    mean = pd.Series(np.where(good, values, np.nan)).rolling(window, min_periods=1).mean().to_numpy()
    return np.where(good, mean, np.nan)


def _add_curve(drawing: Drawing, curve: LossCurveNumbers, index: int, where: str, unit: str, metric_row: int) -> None:
    colour, symbol = COLORWAY[index % len(COLORWAY)], _SYMBOLS[index % len(_SYMBOLS)]
    stroke = Stroke(colour, dash=DASHES[index % len(DASHES)])
    label = plain(curve.label)
    hover = f"The loss of {label} {where} was %{{y:.4g}}."
    drawing.line(curve.loss, stroke, hover, name=label, legendgroup=label)
    hover, name = f"{label} overflowed {where}.", f"overflow in {label}"
    drawing.marks(curve.overflow, OVERFLOW, hover, name=name, legendgroup=label)
    drawing.line(
        curve.metric,
        stroke,
        f"{label} reached %{{y:.4g}} {unit} {where}.",
        mode="lines+markers",
        marker={"symbol": symbol, "size": 8, "color": colour},
        name=label,
        legendgroup=label,
        showlegend=not curve.loss.x.size,
        row=metric_row,
    )
