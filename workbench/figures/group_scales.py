"""Group scales: the loss scale of every group of parameters, what moved it, and what overflows cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.records import EventKind
from workbench.figures import frames
from workbench.figures.drawing import OVERFLOW, Drawing, Mark, Stroke
from workbench.figures.frames import EventTable, StepTable
from workbench.figures.labels import counted, percent, plain, power_of_two
from workbench.figures.theme import COLORWAY, DASHES, GREY, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_marks, thin_stairs

_QUESTION = "Does every group of parameters find its own loss scale?"


@dataclass(frozen=True, eq=False)
class GroupScaleLine:
    """One group; of its marks those that are drawn."""

    name: str  # where an event named it, else "group k", counted from 1
    line: Line  # log2 of the scale that was used, thinned
    growth: Line  # log2 of the scale after growing
    back_off: Line  # steps at which an overflow arose in this group, and log2 of the scale it used
    n_overflows: int  # how often that happened, drawn or not
    last_log2: float  # of the last known scale; NaN when there is none


@dataclass(frozen=True, eq=False)
class GroupScalesNumbers:
    """Numbers behind the lines."""

    groups: tuple[GroupScaleLine, ...]
    floor: Line  # steps at which no scale could fall any further, with log2 of the smallest one
    n_steps: int  # micro-batches in the record
    n_overflows: int  # in the record, of whichever group
    wasted_share: float  # of all micro-batches, whose gradient was thrown away, in [0, 1]


def group_scales_numbers(steps: StepTable, events: EventTable = None) -> GroupScalesNumbers:
    """Reduce a recorded run to one line per group, which the events name."""
    frame, events = frames.steps_frame(steps), frames.events_frame(events)
    step, log2 = frames.column(frame, "step"), frames.log2_known(_scales(frame))
    changes = frames.events_of(events, EventKind.SCALE_UP, EventKind.SCALE_DOWN)
    names = _names(changes, log2.shape[1])
    at_floor = frames.column(frames.events_of(events, EventKind.SCALE_FLOOR), "step")
    rows = thin_marks(np.flatnonzero(np.isin(step, at_floor) & np.isfinite(log2).any(axis=1)))
    return GroupScalesNumbers(
        groups=tuple(_line(name, step, log2[:, index], changes) for index, name in enumerate(names)),
        floor=Line(step[rows], np.nanmin(log2[rows], axis=1) if rows.size else np.empty(0)),
        n_steps=len(frame),
        n_overflows=int(frames.flags(frame, "overflow").sum()),
        wasted_share=frames.wasted_share(frame),
    )


def group_scales_drawing(
    steps: StepTable, events: EventTable = None, *, theme: Theme = "auto", height: int = 430
) -> Drawing:
    """Draw one line per group, with the steps at which its scale grew or its gradients overflowed."""
    numbers = group_scales_numbers(steps, events)
    groups = [group for group in numbers.groups if group.line.x.size]
    if not groups:
        reason = "No group scale was recorded; boost.loss_scale_group gives each group a loss scale of its own."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    drawing = Drawing(_answer(groups), _costs(numbers), theme=theme, height=height)
    for index, group in enumerate(groups):
        name, scale = plain(group.name), np.exp2(group.line.y)
        stroke = Stroke(COLORWAY[index % len(COLORWAY)], dash=DASHES[index % len(DASHES)], shape="hv")
        hover = f"At step %{{x:,}} the loss scale of {name} was %{{customdata:,.6~g}}."
        drawing.line(group.line, stroke, hover, name=name, customdata=scale)
    growth = "After step %{customdata[0]:,} the scale of %{customdata[1]} grew."
    for index, group in enumerate(groups):
        mark = Mark("triangle-up", 8, COLORWAY[index % len(COLORWAY)])
        _add_marks(drawing, "growth", group, group.growth, mark, growth)
    overflow = "Step %{customdata[0]:,} overflowed in %{customdata[1]}, whose scale fell."
    for group in groups:
        _add_marks(drawing, "overflow", group, group.back_off, OVERFLOW, overflow)
    hover = "At step %{x:,} no loss scale of a group could fall any further."
    drawing.marks(numbers.floor, Mark("line-ew-open", 14, GREY, 2), hover, name="floor")
    drawing.set_steps()
    drawing.set_powers("Loss scale (log2 axis)")
    drawing.show_legend()
    return drawing


def _scales(frame: pd.DataFrame) -> Floats:
    """Return the scales ``[n_steps, n_groups]``, NaN before groups were found."""
    cells: list[Any] = frame["group_scales"].tolist() if "group_scales" in frame.columns else [()] * len(frame)
    known = frames.filled_rows(cells)
    table = np.full((len(cells), max((len(cells[row]) for row in known), default=0)), np.nan)
    for width in {len(cells[row]) for row in known}:  # always one, unless runs were joined
        rows = [row for row in known if len(cells[row]) == width]
        table[rows, :width] = np.array([cells[row] for row in rows], dtype=np.float64)
    return table


def _names(changes: pd.DataFrame, n_groups: int) -> list[str]:
    """Return the groups' names: the subjects of their events, which begin with their number."""
    names = [f"group {number}" for number in range(1, n_groups + 1)]
    for subject in changes["subject"].astype(str).unique().tolist():
        found = re.match(r"group (\d+)\b", subject)
        if found and 1 <= int(found[1]) <= n_groups:
            names[int(found[1]) - 1] = subject
    return names


def _line(name: str, step: Floats, log2: Floats, changes: pd.DataFrame) -> GroupScaleLine:
    own = changes[changes["subject"].astype(str) == name]
    up, down = frames.events_of(own, EventKind.SCALE_UP), frames.events_of(own, EventKind.SCALE_DOWN)
    grown = thin_marks(np.arange(len(up)))
    fallen = thin_marks(np.flatnonzero(np.isin(step, frames.column(down, "step"))))
    new = np.log2(np.maximum(frames.column(up, "value"), np.finfo(np.float64).tiny))
    return GroupScaleLine(
        name=name,
        line=thin_stairs(step, log2, MAXIMUM_POINTS),
        growth=Line(frames.column(up, "step")[grown], new[grown]),
        back_off=Line(step[fallen], log2[fallen]),
        n_overflows=len(down),
        last_log2=frames.last_known(log2),
    )


def _answer(groups: Sequence[GroupScaleLine]) -> str:
    ends = [group.last_log2 for group in groups]
    low, high = power_of_two(min(ends)), power_of_two(max(ends))
    if len(groups) == 1:
        return f"One group of parameters was found; its loss scale stands at {high}"
    if low == high:
        return f"The loss scales of {counted(len(groups), 'group')} all stand at {high}"
    return f"The loss scales of {counted(len(groups), 'group')} stand between {low} and {high}"


def _costs(numbers: GroupScalesNumbers) -> str:
    text = f"{percent(numbers.wasted_share)} of {counted(numbers.n_steps, 'step')} wasted on updates that were skipped"
    if numbers.n_overflows == 0:
        return text + "; no group overflowed"
    most = max(numbers.groups, key=lambda group: group.n_overflows)
    if not most.n_overflows or len(numbers.groups) == 1:
        return f"{text}; {counted(numbers.n_overflows, 'overflow')}"
    return f"{text}; {counted(most.n_overflows, 'overflow')} of {numbers.n_overflows} arose in {plain(most.name)}"


def _add_marks(drawing: Drawing, kind: str, group: GroupScaleLine, points: Line, mark: Mark, hover: str) -> None:
    at = points.x + 1 if kind == "growth" else points.x  # a new scale is in force from the next step on
    is_first = all(trace["name"] != kind for trace in drawing.traces)  # one entry in the legend
    carried = [[step, plain(group.name)] for step in points.x.tolist()]
    drawing.marks((at, points.y), mark, hover, name=kind, legendgroup=kind, showlegend=is_first, customdata=carried)
