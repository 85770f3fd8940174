"""What comes in and what it does to the trainer: rate, waiting, growth of the tables, rejected records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.core.records import EventKind
from workbench.figures import frames
from workbench.figures.drawing import Drawing, Mark, Stroke
from workbench.figures.frames import EventPoints, EventTable, StepTable
from workbench.figures.labels import compact, counted, grouped, percent
from workbench.figures.theme import BLUE, GREEN, ORANGE, PURPLE, VERMILLION, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_line, thin_stairs

_QUESTION = "Does the trainer keep up with its stream?"
# Field of the numbers -> title of its row, name, colour, sentence.
_ROWS = {
    "rate": ("Records<br>per second", "rate", BLUE, "Up to step %{x:,}, %{y:,.0f} records arrived per second."),
    "wait": ("Waiting<br>(ms per step)", "wait", ORANGE, "Step %{x:,} waited %{y:.3g} ms for its batch."),
    "rows": ("Table rows<br>in use", "rows in use", GREEN, "At step %{x:,} the tables used %{y:,} rows."),
    "evictions": ("Evicted<br>(rows)", "evictions", PURPLE, "Up to step %{x:,}, %{y:,} rows got another id."),
    "rejected": ("Rejected<br>(records)", "rejected", VERMILLION, "Up to step %{x:,}, %{y:,} records were rejected."),
}


@dataclass(frozen=True, eq=False)
class OnlineStreamNumbers:
    """Numbers behind the rows; a line that was not recorded is empty, a number that is not known is NaN."""

    rate: Line  # records trained on per second
    wait: Line  # time a step waited for its batch, milliseconds
    rows: Line  # in use over all growing tables
    evictions: Line  # rows taken from one id and given to another, since the run began
    rejected: Line  # records that could not be trained on, since the run began
    rejections: EventPoints  # steps before which records were rejected, drawn marks only; how many were by then
    mean_rate: float  # records per second
    mean_wait_ms: float
    last_rows: float
    last_evictions: float
    n_rejected: int
    rejected_share: float  # of all records of the stream so far, in [0, 1]


def online_stream_numbers(steps: StepTable, events: EventTable = None) -> OnlineStreamNumbers:
    """Reduce a recorded online run to the lines of its stream."""
    frame = frames.steps_frame(steps)
    step, samples = frames.column(frame, "step"), frames.column(frame, "samples", 0.0)
    rejected, wait = frames.column(frame, "online.rejected"), frames.column(frame, "online.wait_ms")
    rows, evictions = frames.column(frame, "online.table_rows"), frames.column(frame, "online.table_evictions")
    known = np.flatnonzero(np.isfinite(rejected))
    n_rejected = int(rejected[known[-1]]) if known.size else 0
    n_records = float(np.nansum(samples)) + n_rejected
    rejections, _ = frames.event_points(
        events, EventKind.RECORD_REJECTED, lambda at: _value_at(at, step[known], rejected[known])
    )
    return OnlineStreamNumbers(
        rate=thin_line(step, frames.column(frame, "online.records_per_second"), MAXIMUM_POINTS),
        wait=thin_line(step, wait, MAXIMUM_POINTS),
        rows=thin_line(step, rows, MAXIMUM_POINTS),
        evictions=thin_line(step, evictions, MAXIMUM_POINTS),
        rejected=thin_stairs(step, rejected, MAXIMUM_POINTS),
        rejections=rejections,
        mean_rate=_mean_rate(frames.column(frame, "seconds"), samples),
        mean_wait_ms=frames.mean_known(wait),
        last_rows=frames.last_known(rows),
        last_evictions=frames.last_known(evictions),
        n_rejected=n_rejected,
        rejected_share=n_rejected / n_records if known.size and n_records else float("nan"),
    )


def online_stream_drawing(steps: StepTable, events: EventTable = None, *, theme: Theme = "auto") -> Drawing:
    """Draw rate, waiting, table growth and rejected records (``online.*``) below each other.

    A row without data is left out; events say why records were rejected.
    """
    numbers = online_stream_numbers(steps, events)
    fields = [field for field in _ROWS if getattr(numbers, field).x.size]
    if not fields:
        reason = "No online run has recorded a step yet; give online_train a recorder."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    height, rows, spacing = 150 + 125 * len(fields), (1,) * len(fields), 0.12 / len(fields)
    drawing = Drawing(_answer(numbers), _details(numbers), theme=theme, height=height, rows=rows, spacing=spacing)
    for row, field in enumerate(fields, start=1):
        title, name, colour, hover = _ROWS[field]
        line, stroke = getattr(numbers, field), Stroke(colour, shape="hv" if field == "rejected" else "linear")
        # Without an entry in the legend: the axis has the same name.
        drawing.line(line, stroke, hover, name=name, showlegend=False, row=row)
        drawing.set_y(title, row=row, rangemode="tozero", nticks=5)
    if "rejected" in fields:
        mark = Mark("circle-open", 8, VERMILLION, edge=2)
        drawing.events(numbers.rejections, mark, name="reason for a rejection", row=len(fields))
    drawing.set(showlegend=bool(numbers.rejections.x.size), margin={"b": 96})
    drawing.set_steps()
    return drawing


def _value_at(at: Floats, step: Floats, values: Floats) -> Floats:
    """Return a running total at some steps: the first value recorded at or after each, the last one past the end."""
    if not step.size:
        return np.full(at.size, np.nan)
    return values[np.minimum(np.searchsorted(step, at), step.size - 1)]


def _mean_rate(seconds: Floats, samples: Floats) -> float:
    """Return records per second; the clock restarts where a run was resumed, and the pause does not count."""
    passed = np.diff(seconds)
    known = passed > 0
    return float(np.nansum(samples[:-1][known])) / float(passed[known].sum()) if known.any() else float("nan")


def _answer(numbers: OnlineStreamNumbers) -> str:
    rejected = f"{percent(numbers.rejected_share)} of the records rejected"
    if not np.isfinite(numbers.mean_rate):
        return rejected
    rate = f"{grouped(numbers.mean_rate)} records per second"
    return f"{rate}, {rejected}" if np.isfinite(numbers.rejected_share) else rate


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
