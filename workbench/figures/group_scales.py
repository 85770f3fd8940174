"""Group scales: the loss scale of every group of parameters, what moved it, and what overflows cost.

A run with group scales records one scale per group and step. Who overflowed is known from the events: the scale of a
group falls at the step at which an overflow arose in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from workbench.core.records import EventKind
from workbench.figures.frames import (
    EventTable,
    StepTable,
    column,
    events_frame,
    flags,
    steps_frame,
)
from workbench.figures.labels import (
    counted,
    percent,
    plain,
    power_of_two,
    power_ticks,
)
from workbench.figures.theme import (
    COLORWAY,
    GREY,
    VERMILLION,
    Theme,
    empty_figure,
    new_figure,
)
from workbench.figures.thinning import (
    MAXIMUM_MARKS,
    MAXIMUM_POINTS,
    staircase_indices,
    thin_marks,
)

__all__ = ["GroupScaleLine", "GroupScalesNumbers", "group_scales_figure", "group_scales_numbers"]

_QUESTION = "Does every group of parameters find its own loss scale?"
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True, eq=False)
class GroupScaleLine:
    """One group.

    Args:
        name: Its name where an event named it, else ``"group k"``, counted from 1.
        steps: Steps of the line ``[m]``, thinned.
        log2: log2 of the scale used at those steps ``[m]``.
        growth: Steps and log2 scale after growing, drawn marks only.
        back_off: Steps at which an overflow arose in this group, and log2 of the scale that it used.
        n_overflows: How often that happened, drawn or not.
        last_log2: log2 of the last known scale; NaN when there is none.
    """

    name: str
    steps: npt.NDArray[np.float64]
    log2: npt.NDArray[np.float64]
    growth: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    back_off: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    n_overflows: int
    last_log2: float


@dataclass(frozen=True, eq=False)
class GroupScalesNumbers:
    """Numbers behind the lines.

    Args:
        groups: One line per group.
        floor: Steps at which no scale could fall any further, with log2 of the smallest one.
        n_steps: Micro-batches in the record.
        n_overflows: Overflows in the record, of whichever group.
        wasted_share: Share of all micro-batches whose gradient was thrown away, in [0, 1].
    """

    groups: tuple[GroupScaleLine, ...]
    floor: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    n_steps: int
    n_overflows: int
    wasted_share: float


def group_scales_numbers(
    steps: StepTable,
    events: EventTable = None,
    *,
    names: Sequence[str] | None = None,
    limit: int = MAXIMUM_POINTS,
) -> GroupScalesNumbers:
    """Reduce a recorded run to one line per group.

    Args:
        steps: Step table or records with ``group_scales``.
        events: Event table or records; they say which group grew or overflowed.
        names: Names of the groups in their order; None reads them from the events.
        limit: Most points of a line.

    Raises:
        ValueError: When ``names`` has another length than there are groups.
    """
    frame, happened = steps_frame(steps), events_frame(events)
    step, log2 = column(frame, "step"), _log2_table(frame)
    n_groups = log2.shape[1]
    changes = happened[happened["kind"].astype(str).isin([EventKind.SCALE_UP, EventKind.SCALE_DOWN])]
    called = _names(changes, n_groups) if names is None else list(names)
    if len(called) != n_groups:
        raise ValueError(f"`names` must name each of the {n_groups} groups, got {len(called)} names")
    wasted = float(np.nansum(column(frame, "accumulated", 1.0)[flags(frame, "skipped")]))
    return GroupScalesNumbers(
        groups=tuple(_line(name, step, log2[:, index], changes, limit) for index, name in enumerate(called)),
        floor=_floor(happened, step, log2),
        n_steps=len(frame),
        n_overflows=int(flags(frame, "overflow").sum()),
        wasted_share=min(1.0, wasted / len(frame)) if len(frame) else float("nan"),
    )


def group_scales_figure(
    steps: StepTable,
    events: EventTable = None,
    *,
    names: Sequence[str] | None = None,
    theme: Theme = "auto",
    height: int = 430,
) -> go.Figure:
    """Draw one line per group, with the steps at which its scale grew or its gradients overflowed.

    Args:
        steps: See ``group_scales_numbers``.
        events: See ``group_scales_numbers``.
        names: See ``group_scales_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = group_scales_numbers(steps, events, names=names)
    drawn = [group for group in numbers.groups if group.steps.size]
    if not drawn:
        return empty_figure(
            _QUESTION,
            "No scale of a group was recorded; switch boost.loss_scale_group on to give groups scales of their own.",
            theme=theme,
        )
    figure = new_figure(_answer(drawn), _costs(numbers), theme=theme, height=height)
    for index, group in enumerate(drawn):
        name = plain(group.name)
        figure.add_scatter(
            x=group.steps,
            y=group.log2,
            mode="lines",
            line={
                "shape": "hv",
                "width": 2,
                "color": COLORWAY[index % len(COLORWAY)],
                "dash": _DASHES[index % len(_DASHES)],
            },
            name=name,
            customdata=np.exp2(group.log2),
            hovertemplate=f"At step %{{x:,}} the loss scale of {name} was %{{customdata:,.6g}}.<extra></extra>",
        )
    _add_marks(figure, drawn)
    if numbers.floor[0].size:
        figure.add_scatter(
            x=numbers.floor[0],
            y=numbers.floor[1],
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 14, "color": GREY, "line": {"width": 2}},
            name="floor",
            hovertemplate="At step %{x:,} no loss scale of a group could fall any further.<extra></extra>",
        )
    heights = np.concatenate([np.asarray(trace.y, dtype=np.float64) for trace in figure.data])
    low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
    positions, texts = power_ticks(low, high)
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d")
    figure.update_yaxes(
        title_text="Loss scale (log2 axis)", tickvals=positions, ticktext=texts, range=[low - 0.9, high + 0.9]
    )
    figure.update_layout(showlegend=True, margin={"b": 92})
    return figure


def _log2_table(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return log2 of the scales ``[n_steps, n_groups]``, NaN before groups were found and where it is not finite."""
    if "group_scales" not in frame.columns or not len(frame):
        return np.empty((len(frame), 0))
    cells: list[Any] = frame["group_scales"].tolist()
    # pandas writes a missing list as NaN
    known = [row for row, cell in enumerate(cells) if not isinstance(cell, float) and cell is not None and len(cell)]
    table = np.full((len(cells), max((len(cells[row]) for row in known), default=0)), np.nan)
    for width in {len(cells[row]) for row in known}:  # always one, unless runs were joined
        rows = [row for row in known if len(cells[row]) == width]
        table[rows, :width] = np.array([cells[row] for row in rows], dtype=np.float64)
    good = np.isfinite(table) & (table > 0)
    log2: npt.NDArray[np.float64] = np.log2(table, out=np.full_like(table, np.nan), where=good)
    return log2


def _names(changes: pd.DataFrame, n_groups: int) -> list[str]:
    """Return the groups' names: the subjects of their events, which begin with their number."""
    names = [f"group {number}" for number in range(1, n_groups + 1)]
    for subject in changes["subject"].astype(str).unique().tolist():
        number = _number(subject)
        if 1 <= number <= n_groups:
            names[number - 1] = subject
    return names


def _number(subject: str) -> int:
    found = re.match(r"group (\d+)\b", subject)
    return int(found.group(1)) if found else 0


def _line(
    name: str, step: npt.NDArray[np.float64], log2: npt.NDArray[np.float64], changes: pd.DataFrame, limit: int
) -> GroupScaleLine:
    own = changes[changes["subject"].astype(str) == name]
    kinds = own["kind"].astype(str)
    up, down = own[kinds == EventKind.SCALE_UP], own[kinds == EventKind.SCALE_DOWN]
    at_down = np.flatnonzero(np.isin(step, column(down, "step")))
    line = staircase_indices(step, log2, limit)
    finite = np.flatnonzero(np.isfinite(log2))
    grown, fallen = thin_marks(np.arange(len(up)), MAXIMUM_MARKS), thin_marks(at_down, MAXIMUM_MARKS)
    new = np.log2(np.maximum(column(up, "value"), np.finfo(np.float64).tiny))
    return GroupScaleLine(
        name=name,
        steps=step[line],
        log2=log2[line],
        growth=(column(up, "step")[grown], new[grown]),
        back_off=(step[fallen], log2[fallen]),
        n_overflows=len(down),
        last_log2=float(log2[finite[-1]]) if finite.size else float("nan"),
    )


def _floor(
    events: pd.DataFrame, step: npt.NDArray[np.float64], log2: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    at = column(events[events["kind"].astype(str) == EventKind.SCALE_FLOOR], "step")
    rows = thin_marks(np.flatnonzero(np.isin(step, at) & np.isfinite(log2).any(axis=1)))
    return step[rows], np.nanmin(log2[rows], axis=1) if rows.size else np.empty(0)


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
    blamed = [group for group in numbers.groups if group.n_overflows]
    if numbers.n_overflows == 0:
        return text + "; no group overflowed"
    most = max(blamed, key=lambda group: group.n_overflows, default=None)
    if most is None or len(numbers.groups) == 1:
        return f"{text}; {counted(numbers.n_overflows, 'overflow')}"
    return f"{text}; {counted(most.n_overflows, 'overflow')} of {numbers.n_overflows} arose in {plain(most.name)}"


def _add_marks(figure: go.Figure, groups: Sequence[GroupScaleLine]) -> None:
    kinds: tuple[tuple[str, Mapping[str, Any], str], ...] = (
        (
            "growth",
            {"symbol": "triangle-up", "size": 8},
            "After step %{customdata[0]:,} the scale of %{customdata[1]} grew.",
        ),
        (
            "overflow",
            {"symbol": "x", "size": 9, "color": VERMILLION},
            "Step %{customdata[0]:,} overflowed in %{customdata[1]}, whose scale fell.",
        ),
    )
    for kind, style, sentence in kinds:
        first = True
        for index, group in enumerate(groups):
            steps, heights = group.growth if kind == "growth" else group.back_off
            if not steps.size:
                continue
            figure.add_scatter(
                x=steps + 1 if kind == "growth" else steps,  # a new scale is in force from the next step on
                y=heights,
                mode="markers",
                marker={"color": COLORWAY[index % len(COLORWAY)], **style},
                name=kind,
                legendgroup=kind,
                showlegend=first,
                customdata=[[step, plain(group.name)] for step in steps.tolist()],
                hovertemplate=sentence + "<extra></extra>",
            )
            first = False
