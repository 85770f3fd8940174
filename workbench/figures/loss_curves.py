"""Loss curves: training loss and evaluation metric of selected runs, against step or relative time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from workbench.figures.drawing import Drawing
from workbench.figures.frames import (
    StepTable,
    column,
    flags,
    steps_frame,
)
from workbench.figures.labels import MetricScale, counted, plain
from workbench.figures.theme import COLORWAY, VERMILLION, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, thin_indices, thin_marks

__all__ = ["LossCurveNumbers", "RunCurve", "loss_curve_numbers", "loss_curves_drawing", "loss_curves_figure"]

_QUESTION = "Do the runs learn equally well?"
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon")


@dataclass(frozen=True, eq=False)
class RunCurve:
    """One run to draw.

    Args:
        label: Name in the legend.
        steps: Step table or records.
        evaluations: Pairs (micro-batches done, metric in the task's unit).
        relative_step_time: Step time / step time of O0, for the axis of relative time.
    """

    label: str
    steps: StepTable
    evaluations: Sequence[tuple[int, float]] = ()
    relative_step_time: float = 1.0


@dataclass(frozen=True, eq=False)
class LossCurveNumbers:
    """Numbers behind one run's curves.

    Args:
        label: Name in the legend.
        x: Position of the loss points ``[m]``.
        loss: Loss, a running mean over ``window`` steps, thinned ``[m]``.
        window: Steps averaged over; 1 draws the loss as recorded.
        overflow_x: Positions of steps that overflowed.
        overflow_loss: The drawn loss there.
        evaluation_x: Positions of the evaluations.
        metric: Metric at those, in the shown unit.
    """

    label: str
    x: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    window: int
    overflow_x: npt.NDArray[np.float64]
    overflow_loss: npt.NDArray[np.float64]
    evaluation_x: npt.NDArray[np.float64]
    metric: npt.NDArray[np.float64]


def loss_curve_numbers(
    run: RunCurve,
    *,
    x: Literal["step", "seconds", "relative_time"] = "step",
    window: int | None = None,
    metric: MetricScale | None = None,
    limit: int = MAXIMUM_POINTS,
) -> LossCurveNumbers:
    """Reduce one run to its curves.

    Args:
        run: The run.
        x: Axis: micro-batches, wall-clock seconds, or relative time (micro-batches x relative step time, so that
            one unit is one O0 step).
        window: Steps in the running mean; None takes a hundredth of the run, at least 1.
        metric: How the metric is shown; None leaves values as they are.
        limit: Most points of the line.

    Raises:
        ValueError: When ``window`` is not positive.
    """
    frame = steps_frame(run.steps)
    step, loss = column(frame, "step"), column(frame, "loss")
    span = max(1, len(frame) // 100) if window is None else window
    if span < 1:
        raise ValueError(f"`window` must be at least 1, got {window}")
    positions = column(frame, "seconds") if x == "seconds" else step * _step_length(run, x)
    smooth = _running_mean(loss, span)
    chosen = thin_indices(positions, smooth, limit)
    overflow = thin_marks(np.flatnonzero(flags(frame, "overflow") & np.isfinite(smooth)))
    at = np.array([s for s, _ in run.evaluations], dtype=np.float64)
    values = np.array([v for _, v in run.evaluations], dtype=np.float64)
    # After k micro-batches the last one was number k - 1.
    evaluation_x = np.interp(at - 1, step, positions) if x == "seconds" and step.size else at * _step_length(run, x)
    return LossCurveNumbers(
        label=run.label,
        x=positions[chosen],
        loss=smooth[chosen],
        window=span,
        overflow_x=positions[overflow],
        overflow_loss=smooth[overflow],
        evaluation_x=evaluation_x,
        metric=values * (metric.factor if metric else 1.0),
    )


def loss_curves_figure(
    runs: Sequence[RunCurve],
    *,
    x: Literal["step", "seconds", "relative_time"] = "step",
    metric: MetricScale | None = None,
    loss_unit: str = "nats",
    window: int | None = None,
    theme: Theme = "auto",
    height: int = 560,
) -> go.Figure:
    """Return ``loss_curves_drawing`` as a figure of plotly's.

    Args:
        runs: Runs to compare.
        x: See ``loss_curve_numbers``.
        metric: Name and unit of the metric; None calls it ``metric``.
        loss_unit: Unit of the loss.
        window: See ``loss_curve_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    return loss_curves_drawing(
        runs, x=x, metric=metric, loss_unit=loss_unit, window=window, theme=theme, height=height
    ).figure()


def loss_curves_drawing(
    runs: Sequence[RunCurve],
    *,
    x: Literal["step", "seconds", "relative_time"] = "step",
    metric: MetricScale | None = None,
    loss_unit: str = "nats",
    window: int | None = None,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 560,
) -> Drawing:
    """Draw training loss above and evaluation metric below, on one x axis; a row nobody has is left out.

    Args:
        runs: Runs to compare.
        x: See ``loss_curve_numbers``.
        metric: Name and unit of the metric; None calls it ``metric``.
        loss_unit: Unit of the loss.
        window: See ``loss_curve_numbers``.
        limit: Most points of a line.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    curves = [loss_curve_numbers(run, x=x, window=window, metric=metric, limit=limit) for run in runs]
    curves = [curve for curve in curves if curve.x.size or curve.metric.size]
    if not curves:
        return Drawing.empty(_QUESTION, "No run has recorded a step yet.", theme=theme)
    shown = metric or MetricScale("metric")
    trained, evaluated = any(curve.x.size for curve in curves), any(curve.metric.size for curve in curves)
    metric_row = 1 + trained
    n_rows = trained + evaluated
    windows = {curve.window for curve in curves if curve.x.size} or {1}
    smoothing = f"; the loss is a running mean over {counted(max(windows), 'step')}" if max(windows) > 1 else ""
    drawing = Drawing(
        _QUESTION if len(curves) > 1 else f"How did {plain(curves[0].label)} learn?",
        counted(len(curves), "run") + smoothing,
        theme=theme,
        height=height if n_rows == 2 else height * 2 // 3,
        row_heights=(1.0,) * n_rows,
        row_spacing=0.06,
    )
    for index, curve in enumerate(curves):
        _add_curve(drawing, curve, index, x, shown, metric_row)
    drawing.set(showlegend=True, hovermode="x unified" if len(curves) > 1 else "closest", margin={"b": 96})
    if trained:
        drawing.set_y(f"Training loss ({loss_unit})")
    if evaluated:
        drawing.set_y(shown.title, row=metric_row)
    drawing.set_x(_X_TITLES[x])
    return drawing


_X_TITLES = {
    "step": "Step (micro-batches)",
    "seconds": "Time since the run began (s)",
    "relative_time": "Relative time (O0 steps)",
}


def _step_length(run: RunCurve, x: str) -> float:
    return run.relative_step_time if x == "relative_time" else 1.0


def _running_mean(values: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """Mean over the last ``window`` finite values; NaN where the value itself is not finite."""
    good = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(good, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(good)])
    end = np.arange(1, values.size + 1)
    start = np.maximum(end - window, 0)
    n = count[end] - count[start]
    mean = np.divide(total[end] - total[start], n, out=np.full(values.size, np.nan), where=n > 0)
    return np.where(good, mean, np.nan)


def _add_curve(
    drawing: Drawing, curve: LossCurveNumbers, index: int, x: str, metric: MetricScale, metric_row: int
) -> None:
    colour = COLORWAY[index % len(COLORWAY)]
    label = plain(curve.label)
    where = {"step": "at step %{x:,}", "seconds": "after %{x:.4g} s", "relative_time": "at relative time %{x:,.4g}"}[x]
    if curve.x.size:
        drawing.add_scatter(
            x=curve.x,
            y=curve.loss,
            mode="lines",
            line={"width": 2, "color": colour, "dash": _DASHES[index % len(_DASHES)]},
            name=label,
            legendgroup=label,
            hovertemplate=f"The loss of {label} {where} was %{{y:.4g}}.<extra></extra>",
        )
    if curve.overflow_x.size:
        drawing.add_scatter(
            x=curve.overflow_x,
            y=curve.overflow_loss,
            mode="markers",
            marker={"symbol": "x", "size": 8, "color": VERMILLION},
            name=f"overflow in {label}",
            legendgroup=label,
            hovertemplate=f"{label} overflowed {where}.<extra></extra>",
        )
    if curve.metric.size:
        drawing.add_scatter(
            x=curve.evaluation_x,
            y=curve.metric,
            mode="lines+markers",
            line={"width": 2, "color": colour, "dash": _DASHES[index % len(_DASHES)]},
            marker={"symbol": _SYMBOLS[index % len(_SYMBOLS)], "size": 8, "color": colour},
            name=label,
            legendgroup=label,
            showlegend=not curve.x.size,
            hovertemplate=f"{label} reached %{{y:.4g}} {metric.shown_unit} {where}.<extra></extra>",
            row=metric_row,
        )
