"""How good an online run is at any moment: figures of predictions made before their labels were learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.records import EventKind
from workbench.figures.frames import (
    EventTable,
    StepTable,
    column,
    events_frame,
    steps_frame,
)
from workbench.figures.labels import compact, counted, plain
from workbench.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    Theme,
    bare_figure,
    empty_figure,
    set_title,
)
from workbench.figures.thinning import MAXIMUM_POINTS, thin_indices, thin_marks

__all__ = ["OnlineQualityNumbers", "online_quality_figure", "online_quality_numbers"]

_QUESTION = "How good are the predictions of records that are new?"
_MAXIMUM_LINES = 200  # upright ones, one per drift

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OnlineQualityNumbers:
    """Numbers behind the curves.

    Args:
        auc_steps: Steps at which the area under the ROC curve was taken ``[m]``, thinned.
        auc: The area over the last window of records there, in [0, 1].
        loss_steps: Steps at which the log loss was taken, thinned.
        log_loss: Its mean over the last window, nats per record.
        drift_steps: Steps at which the detector saw a change, drawn marks only.
        drift_auc: Area under the curve at those, between its neighbours; NaN where none is known.
        drift_messages: What it said, one sentence each.
        n_drifts: How often it saw one.
        last_auc: The last area; NaN without any.
        last_log_loss: The last log loss; NaN without any.
        lowest_auc: The lowest area once the first tenth of the record has gone by; NaN without any.
        lowest_step: Step of that; NaN without any.
    """

    auc_steps: Floats
    auc: Floats
    loss_steps: Floats
    log_loss: Floats
    drift_steps: Floats
    drift_auc: Floats
    drift_messages: tuple[str, ...]
    n_drifts: int
    last_auc: float
    last_log_loss: float
    lowest_auc: float
    lowest_step: float


def online_quality_numbers(
    steps: StepTable, events: EventTable = None, *, limit: int = MAXIMUM_POINTS
) -> OnlineQualityNumbers:
    """Reduce a recorded online run to the curves of its prequential figures.

    Args:
        steps: Step table or records with the columns ``online.auc`` and ``online.log_loss``.
        events: Event table or records; they say where drift was seen.
        limit: Most points of a line.
    """
    frame, happened = steps_frame(steps), events_frame(events)
    step, auc, loss = column(frame, "step"), column(frame, "online.auc"), column(frame, "online.log_loss")
    seen = happened[happened["kind"].astype(str) == EventKind.DRIFT]
    marks = thin_marks(np.arange(len(seen)), _MAXIMUM_LINES)
    at = column(seen, "step")[marks]
    areas, losses = np.flatnonzero(np.isfinite(auc)), np.flatnonzero(np.isfinite(loss))
    later = areas[areas >= len(frame) // 10]  # a model that has just begun is bad, which is no news
    lowest = int(later[np.argmin(auc[later])]) if later.size else -1
    drawn, drawn_losses = thin_indices(step, auc, limit), thin_indices(step, loss, limit)
    return OnlineQualityNumbers(
        auc_steps=step[drawn],
        auc=auc[drawn],
        loss_steps=step[drawn_losses],
        log_loss=loss[drawn_losses],
        drift_steps=at,
        drift_auc=np.interp(at, step[areas], auc[areas]) if areas.size else np.full(at.size, np.nan),
        drift_messages=tuple(str(message) for message in seen["message"].iloc[marks]),
        n_drifts=len(seen),
        last_auc=float(auc[areas[-1]]) if areas.size else float("nan"),
        last_log_loss=float(loss[losses[-1]]) if losses.size else float("nan"),
        lowest_auc=float(auc[lowest]) if lowest >= 0 else float("nan"),
        lowest_step=float(step[lowest]) if lowest >= 0 else float("nan"),
    )


def online_quality_figure(
    steps: StepTable,
    events: EventTable = None,
    *,
    changes: Sequence[float] = (),
    theme: Theme = "auto",
    height: int = 520,
) -> go.Figure:
    """Draw AUC and log loss against the step, with the steps at which drift was seen.

    Args:
        steps: See ``online_quality_numbers``.
        events: See ``online_quality_numbers``.
        changes: Steps at which the data are known to have changed, for a stream whose law is known.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = online_quality_numbers(steps, events)
    if not numbers.auc_steps.size and not numbers.loss_steps.size:
        return empty_figure(
            _QUESTION,
            "No prediction has been judged yet; give online_train a Prequential and a recorder.",
            theme=theme,
        )
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, figure=bare_figure(theme))
    figure.add_scatter(
        x=numbers.auc_steps,
        y=numbers.auc,
        mode="lines",
        line={"color": BLUE, "width": 2},
        name="AUC",
        showlegend=False,
        hovertemplate="Up to step %{x:,} the last window had an AUC of %{y:.4f}.<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=numbers.loss_steps,
        y=numbers.log_loss,
        mode="lines",
        line={"color": ORANGE, "width": 2},
        name="log loss",
        showlegend=False,
        hovertemplate="Up to step %{x:,} the last window had a log loss of %{y:.4f} nats per record.<extra></extra>",
        row=2,
        col=1,
    )
    _add_changes(figure, numbers, changes)
    _add_drifts(figure, numbers)
    figure.update_layout(
        height=height,
        showlegend=bool(numbers.drift_steps.size or len(changes)),
        margin={"b": 96},
        shapes=[_upright(x, GREY, "dot") for x in list(changes)[:_MAXIMUM_LINES]]
        + [_upright(x, PURPLE, "dash") for x in numbers.drift_steps.tolist()],
    )
    set_title(figure, _answer(numbers), _details(numbers))
    figure.update_yaxes(title_text="AUC of the last<br>window (0 to 1)", row=1, col=1)
    figure.update_yaxes(title_text="Log loss of the last<br>window (nats per record)", row=2, col=1)
    figure.update_xaxes(title_text="Step (batches)", tickformat=",d", row=2, col=1)
    return figure


def _upright(x: float, colour: str, dash: str) -> dict[str, object]:
    """Return a line through both rows."""
    ends = {"x0": x, "x1": x, "y0": 0, "y1": 1, "xref": "x", "yref": "paper"}
    return {"type": "line", "layer": "below", "line": {"color": colour, "width": 1.4, "dash": dash}, **ends}


def _add_changes(figure: go.Figure, numbers: OnlineQualityNumbers, changes: Sequence[float]) -> None:
    if not len(changes):
        return
    figure.add_scatter(
        x=list(changes),
        y=np.full(len(changes), float(np.min(numbers.auc)) if numbers.auc.size else 0.5),
        mode="markers",
        marker={"symbol": "triangle-up-open", "size": 10, "color": GREY, "line": {"width": 2}},
        name="the data changed",
        hovertemplate="From step %{x:,} on the data followed another law.<extra></extra>",
        row=1,
        col=1,
    )


def _add_drifts(figure: go.Figure, numbers: OnlineQualityNumbers) -> None:
    if not numbers.drift_steps.size:
        return
    figure.add_scatter(
        x=numbers.drift_steps,
        y=numbers.drift_auc,
        mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": PURPLE},
        name="drift seen",
        customdata=[[plain(f"{message[:1].upper()}{message[1:]}.")] for message in numbers.drift_messages],
        hovertemplate="%{customdata[0]}<extra></extra>",
        row=1,
        col=1,
    )


def _answer(numbers: OnlineQualityNumbers) -> str:
    seen = {0: "no drift was seen", 1: "drift was seen once", 2: "drift was seen twice"}.get(
        numbers.n_drifts, f"drift was seen {counted(numbers.n_drifts, 'time')}"
    )
    if not np.isfinite(numbers.last_auc):
        return f"The log loss of new records stands at {compact(numbers.last_log_loss)} nats; {seen}"
    return f"The AUC of new records stands at {numbers.last_auc:.3f}; {seen}"


def _details(numbers: OnlineQualityNumbers) -> str:
    parts = []
    if np.isfinite(numbers.lowest_auc):
        where = f"{numbers.lowest_step:,.0f}".replace(",", "\u202f")
        parts.append(f"lowest, after the first tenth: {numbers.lowest_auc:.3f} at step {where}")
    if np.isfinite(numbers.last_auc) and np.isfinite(numbers.last_log_loss):
        parts.append(f"log loss at the end {compact(numbers.last_log_loss)} nats per record")
    parts.append("every record is predicted before it is learned from")
    return "; ".join(parts)
