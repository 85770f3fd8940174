"""What comes in and what it does to the trainer: rate, waiting, growth of the tables, rejected records."""

from __future__ import annotations

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
from workbench.figures.labels import (
    compact,
    counted,
    percent,
    plain,
)
from workbench.figures.theme import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    Theme,
    bare_figure,
    empty_figure,
    set_title,
)
from workbench.figures.thinning import (
    MAXIMUM_POINTS,
    staircase_indices,
    thin_indices,
    thin_marks,
)

__all__ = ["Line", "OnlineStreamNumbers", "online_stream_figure", "online_stream_numbers"]

_QUESTION = "Does the trainer keep up with its stream?"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Line:
    """Points of one line, thinned.

    Args:
        x: Steps ``[m]``.
        y: Values ``[m]``.
    """

    x: Floats
    y: Floats


@dataclass(frozen=True, eq=False)
class OnlineStreamNumbers:
    """Numbers behind the rows; a line that was not recorded is empty.

    Args:
        rate: Records trained on per second.
        wait: Time a step waited for its batch, milliseconds.
        rows: Rows in use over all growing tables.
        evictions: Rows that were taken from one id and given to another, since the run began.
        rejected: Records that could not be trained on, since the run began.
        reject_steps: Steps before which records were rejected, drawn marks only.
        reject_totals: Records rejected since the run began, at those.
        reject_messages: Why, one sentence each.
        mean_rate: Records per second over the whole record; NaN when unknown.
        mean_wait_ms: Mean of the waiting; NaN when unknown.
        last_rows: Rows in use at the end; NaN when unknown.
        last_evictions: Evictions at the end; NaN when unknown.
        n_rejected: Records rejected at the end.
        rejected_share: Share of all records of the stream so far that were rejected, in [0, 1]; NaN when unknown.
    """

    rate: Line
    wait: Line
    rows: Line
    evictions: Line
    rejected: Line
    reject_steps: Floats
    reject_totals: Floats
    reject_messages: tuple[str, ...]
    mean_rate: float
    mean_wait_ms: float
    last_rows: float
    last_evictions: float
    n_rejected: int
    rejected_share: float


def online_stream_numbers(
    steps: StepTable, events: EventTable = None, *, limit: int = MAXIMUM_POINTS
) -> OnlineStreamNumbers:
    """Reduce a recorded online run to the lines of its stream.

    Args:
        steps: Step table or records with the columns ``online.*``.
        events: Event table or records; they say why records were rejected.
        limit: Most points of a line.
    """
    frame, happened = steps_frame(steps), events_frame(events)
    step, samples = column(frame, "step"), column(frame, "samples", 0.0)
    rejected, wait = column(frame, "online.rejected"), column(frame, "online.wait_ms")
    rows, evictions = column(frame, "online.table_rows"), column(frame, "online.table_evictions")
    told = happened[happened["kind"].astype(str) == EventKind.RECORD_REJECTED]
    marks = thin_marks(np.arange(len(told)))
    at = column(told, "step")[marks]
    known = np.flatnonzero(np.isfinite(rejected))
    n_rejected = int(rejected[known[-1]]) if known.size else 0
    accepted = float(np.nansum(samples))
    return OnlineStreamNumbers(
        rate=_line(step, column(frame, "online.records_per_second"), limit),
        wait=_line(step, wait, limit),
        rows=_line(step, rows, limit),
        evictions=_line(step, evictions, limit),
        rejected=_stairs(step, rejected, limit),
        reject_steps=at,
        reject_totals=_value_at(at, step[known], rejected[known]),
        reject_messages=tuple(str(message) for message in told["message"].iloc[marks]),
        mean_rate=_mean_rate(column(frame, "seconds"), samples),
        mean_wait_ms=float(np.nanmean(wait)) if np.isfinite(wait).any() else float("nan"),
        last_rows=_last(rows),
        last_evictions=_last(evictions),
        n_rejected=n_rejected,
        rejected_share=n_rejected / (accepted + n_rejected) if known.size and accepted + n_rejected else float("nan"),
    )


def online_stream_figure(
    steps: StepTable, events: EventTable = None, *, theme: Theme = "auto", row_height: int = 125
) -> go.Figure:
    """Draw rate, waiting, table growth and rejected records below each other; a row nobody recorded is left out.

    Args:
        steps: See ``online_stream_numbers``.
        events: See ``online_stream_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        row_height: Height of one row, pixels.
    """
    numbers = online_stream_numbers(steps, events)
    rows = [row for row in _rows(numbers) if row.line.x.size]
    if not rows:
        return empty_figure(
            _QUESTION, "No online run has recorded a step yet; give online_train a recorder.", theme=theme
        )
    figure = make_subplots(
        rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(rows), figure=bare_figure(theme)
    )
    for number, row in enumerate(rows, start=1):
        figure.add_scatter(
            x=row.line.x,
            y=row.line.y,
            mode="lines",
            line={"color": row.colour, "width": 2, "shape": row.shape},
            name=row.name,
            showlegend=False,  # the axis has the same name
            hovertemplate=f"{row.sentence}<extra></extra>",
            row=number,
            col=1,
        )
        figure.update_yaxes(title_text=row.title, rangemode="tozero", nticks=5, row=number, col=1)
        if row.line is numbers.rejected:
            _add_rejections(figure, numbers, number)
    figure.update_layout(
        height=150 + row_height * len(rows), showlegend=bool(numbers.reject_steps.size), margin={"b": 96}
    )
    set_title(figure, _answer(numbers), _details(numbers))
    figure.update_xaxes(title_text="Step (batches)", tickformat=",d", row=len(rows), col=1)
    return figure


@dataclass(frozen=True, eq=False)
class _Row:
    title: str
    name: str
    line: Line
    colour: str
    sentence: str
    shape: str = "linear"


def _rows(numbers: OnlineStreamNumbers) -> tuple[_Row, ...]:
    rate, wait = "Up to step %{x:,} came %{y:,.0f} records per second.", "Step %{x:,} waited %{y:.3g} ms for its batch."
    used = "At step %{x:,} the tables used %{y:,} rows."
    evicted = "Up to step %{x:,} rows went from one id to another %{y:,} times."
    rejected = "Up to step %{x:,} %{y:,} records were rejected."
    return (
        _Row("Records<br>per second", "rate", numbers.rate, BLUE, rate),
        _Row("Waiting<br>(ms per step)", "wait", numbers.wait, ORANGE, wait),
        _Row("Table rows<br>in use", "rows in use", numbers.rows, GREEN, used),
        _Row("Evicted<br>(rows)", "evictions", numbers.evictions, PURPLE, evicted),
        _Row("Rejected<br>(records)", "rejected", numbers.rejected, VERMILLION, rejected, "hv"),
    )


def _add_rejections(figure: go.Figure, numbers: OnlineStreamNumbers, row: int) -> None:
    if not numbers.reject_steps.size:
        return
    figure.add_scatter(
        x=numbers.reject_steps,
        y=numbers.reject_totals,
        mode="markers",
        marker={"symbol": "circle-open", "size": 8, "color": VERMILLION, "line": {"width": 2}},
        name="the reason told",
        customdata=[[plain(f"{message[:1].upper()}{message[1:]}.")] for message in numbers.reject_messages],
        hovertemplate="%{customdata[0]}<extra></extra>",
        row=row,
        col=1,
    )


def _line(step: Floats, values: Floats, limit: int) -> Line:
    chosen = thin_indices(step, values, limit)
    return Line(step[chosen], values[chosen])


def _stairs(step: Floats, values: Floats, limit: int) -> Line:
    chosen = staircase_indices(step, values, limit)
    return Line(step[chosen], values[chosen])


def _value_at(at: Floats, step: Floats, values: Floats) -> Floats:
    """Return a running total at some steps: the first value recorded at or after each, the last one past the end."""
    if not step.size:
        return np.full(at.size, np.nan)
    return values[np.minimum(np.searchsorted(step, at), step.size - 1)]


def _mean_rate(seconds: Floats, samples: Floats) -> float:
    """Return records per second; the clock begins anew where a run was resumed, and the pause does not count."""
    passed = np.diff(seconds)
    known = passed > 0
    return float(np.nansum(samples[:-1][known])) / float(passed[known].sum()) if known.any() else float("nan")


def _last(values: Floats) -> float:
    known = np.flatnonzero(np.isfinite(values))
    return float(values[known[-1]]) if known.size else float("nan")


def _answer(numbers: OnlineStreamNumbers) -> str:
    told = f"{percent(numbers.rejected_share)} of the records rejected"
    if not np.isfinite(numbers.mean_rate):
        return told
    rate = f"{numbers.mean_rate:,.0f}".replace(",", "\u202f")
    return f"{rate} records per second" + ("" if not np.isfinite(numbers.rejected_share) else f", {told}")


def _details(numbers: OnlineStreamNumbers) -> str:
    parts = []
    if np.isfinite(numbers.mean_wait_ms):
        parts.append(f"a step waits {compact(numbers.mean_wait_ms)} ms for its batch")
    if np.isfinite(numbers.last_rows):
        parts.append(f"{counted(int(numbers.last_rows), 'table row')} in use")
    if np.isfinite(numbers.last_evictions):
        parts.append(counted(int(numbers.last_evictions), "eviction"))
    parts.append(f"{counted(numbers.n_rejected, 'record')} rejected")
    return "; ".join(parts)
