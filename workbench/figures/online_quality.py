"""How good an online run is at any moment: figures of predictions made before their labels were learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.records import EventKind
from workbench.figures.drawing import Drawing, Mark, Stroke
from workbench.figures.frames import EventPoints, EventTable, StepTable, column, event_points, last_known, steps_frame
from workbench.figures.labels import compact, grouped, times
from workbench.figures.theme import BLUE, GREY, ORANGE, PURPLE, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_line

_QUESTION = "How good are the predictions of records that are new?"
_MAXIMUM_LINES = 200  # upright ones, one per drift


@dataclass(frozen=True, eq=False)
class OnlineQualityNumbers:
    """Numbers behind the curves, which are thinned; single numbers are NaN where there are none."""

    auc: Line  # area under the ROC curve over the last window of records, in [0, 1]
    log_loss: Line  # its mean over the last window, nats per record
    drifts: EventPoints  # steps at which the detector saw a change, drawn marks only; the area between its neighbours
    n_drifts: int
    last_auc: float
    last_log_loss: float
    unknown_since: float  # last step with a log loss, where later ones should have had some; else NaN
    lowest_auc: float  # once the first tenth of the record has gone by
    lowest_step: float


def online_quality_numbers(steps: StepTable, events: EventTable = None) -> OnlineQualityNumbers:
    """Reduce a recorded online run to the curves of its prequential figures."""
    frame = steps_frame(steps)
    step, auc, loss = column(frame, "step"), column(frame, "online.auc"), column(frame, "online.log_loss")
    areas = np.flatnonzero(np.isfinite(auc))
    later = areas[areas >= len(frame) // 10]  # a model that has just begun is bad, which is no news
    lowest = int(later[np.argmin(auc[later])]) if later.size else None

    def between(at: Floats) -> Floats:
        return np.interp(at, step[areas], auc[areas]) if areas.size else np.full(at.size, np.nan)

    drifts, n_drifts = event_points(events, EventKind.DRIFT, between, _MAXIMUM_LINES)
    return OnlineQualityNumbers(
        auc=thin_line(step, auc, MAXIMUM_POINTS),
        log_loss=thin_line(step, loss, MAXIMUM_POINTS),
        drifts=drifts,
        n_drifts=n_drifts,
        last_auc=last_known(auc),
        last_log_loss=last_known(loss),
        unknown_since=_unknown_since(step, loss),
        lowest_auc=float("nan") if lowest is None else float(auc[lowest]),
        lowest_step=float("nan") if lowest is None else float(step[lowest]),
    )


def online_quality_drawing(
    steps: StepTable,
    events: EventTable = None,
    *,
    changes: Sequence[float] = (),
    theme: Theme = "auto",
    height: int = 520,
) -> Drawing:
    """Draw AUC and log loss (``online.*``) against the step, with the steps at which drift was seen.

    ``changes`` are steps at which the data are known to have changed, for a stream whose law is known.
    """
    numbers = online_quality_numbers(steps, events)
    if not numbers.auc.x.size and not numbers.log_loss.x.size:
        reason = "No prediction has been judged yet; give online_train a Prequential and a recorder."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    drawing = Drawing(_answer(numbers), _details(numbers), theme=theme, height=height, rows=(1, 1))
    hover = "Up to step %{x:,} the last window had an AUC of %{y:.4f}."
    drawing.line(numbers.auc, Stroke(BLUE), hover, name="AUC", showlegend=False)
    hover = "Up to step %{x:,} the last window had a log loss of %{y:.4f} nats per record."
    drawing.line(numbers.log_loss, Stroke(ORANGE), hover, name="log loss", showlegend=False, row=2)
    for x in list(changes)[:_MAXIMUM_LINES]:
        drawing.rule(Stroke(GREY, 1.4, "dot"), x=x, row=None)
    for x in numbers.drifts.x.tolist():
        drawing.rule(Stroke(PURPLE, 1.4, "dash"), x=x, row=None)
    bottom = np.full(len(changes), float(np.min(numbers.auc.y)) if numbers.auc.x.size else 0.5)
    hover, mark = "From step %{x:,} on, the data are different.", Mark("triangle-up-open", 10, GREY, edge=2)
    drawing.marks((list(changes), bottom), mark, hover, name="the data changed")
    drawing.events(numbers.drifts, Mark("diamond", 10, PURPLE), name="drift seen")
    drawing.set(showlegend=bool(numbers.drifts.x.size or len(changes)), margin={"b": 96})
    drawing.set_y("AUC of the last<br>window (0 to 1)")
    drawing.set_y("Log loss of the last<br>window (nats per record)", row=2)
    drawing.set_steps()
    return drawing


def _unknown_since(step: Floats, loss: Floats) -> float:
    at = step[np.isfinite(loss)]  # every k-th step, while any prediction in the window is finite
    between = np.diff(at, prepend=-1.0)  # the first one comes after k steps, too
    is_late = at.size and step[-1] - at[-1] >= 2 * between[-1]
    return float(at[-1]) if is_late else float("nan")


def _answer(numbers: OnlineQualityNumbers) -> str:
    if np.isfinite(numbers.unknown_since):
        return f"Since step {grouped(numbers.unknown_since)} no prediction of a new record has been finite"
    seen = f"drift was seen {times(numbers.n_drifts)}" if numbers.n_drifts else "no drift was seen"
    if not np.isfinite(numbers.last_auc):
        return f"The log loss of new records stands at {compact(numbers.last_log_loss)} nats; {seen}"
    return f"The AUC of new records stands at {numbers.last_auc:.3f}; {seen}"


def _details(numbers: OnlineQualityNumbers) -> str:
    parts = []
    if np.isfinite(numbers.lowest_auc):
        lowest, where = f"{numbers.lowest_auc:.3f}", grouped(numbers.lowest_step)
        parts.append(f"lowest, after the first tenth: {lowest} at step {where}")
    if np.isfinite(numbers.last_auc) and np.isfinite(numbers.last_log_loss):
        parts.append(f"log loss at the end {compact(numbers.last_log_loss)} nats per record")
    parts.append("every record is predicted before it is learned from")
    return "; ".join(parts)
