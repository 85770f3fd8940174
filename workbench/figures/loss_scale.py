"""Loss-scale trace: which scale was in force, where it overflowed, what that cost.

The scale is drawn on a log2 axis because every rule multiplies it. Marks have a shape each and are named in the
legend; the subtitle says how much of the work was thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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
    subjects_by_step,
)
from workbench.figures.labels import (
    counted,
    percent,
    plain,
    power_of_two,
    power_ticks,
)
from workbench.figures.theme import (
    BLUE,
    COLORWAY,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    Theme,
)
from workbench.figures.thinning import (
    MAXIMUM_MARKS,
    MAXIMUM_POINTS,
    staircase_indices,
    thin_marks,
)

__all__ = ["LossScaleNumbers", "loss_scale_drawing", "loss_scale_figure", "loss_scale_numbers"]

_QUESTION = "Which loss scale fits, and what did overflows cost?"


@dataclass(frozen=True, eq=False)
class LossScaleNumbers:
    """Numbers behind the loss-scale trace; every array is aligned with the line or with its marks.

    Args:
        line_steps: Steps of the line ``[m]``, thinned.
        line_log2: log2 of the scale used at those steps ``[m]``.
        overflow_steps: Steps drawn as overflow ``[k]``; with ``overflow_log2`` and ``overflow_subjects``, the leaf
            modules named by the events (empty where none was named).
        overflow_log2: See above.
        overflow_subjects: See above.
        marks: Steps and log2 scale of ``"growth"``, ``"back-off"``, ``"floor"`` and ``"collapse"``.
        n_steps: Micro-batches in the record.
        n_overflows: Overflows in the record, drawn or not.
        n_first_overflows: Those before the first update that was applied: the search for a scale that works.
        wasted_share: Share of all micro-batches whose gradient was thrown away, in [0, 1].
        last_log2: log2 of the last known scale; NaN when there is none.
    """

    line_steps: npt.NDArray[np.float64]
    line_log2: npt.NDArray[np.float64]
    overflow_steps: npt.NDArray[np.float64]
    overflow_log2: npt.NDArray[np.float64]
    overflow_subjects: tuple[str, ...]
    marks: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
    n_steps: int
    n_overflows: int
    n_first_overflows: int
    wasted_share: float
    last_log2: float


def loss_scale_numbers(steps: StepTable, events: EventTable = None, *, limit: int = MAXIMUM_POINTS) -> LossScaleNumbers:
    """Reduce a recorded run to the numbers of its loss-scale trace.

    Growth and back-off are read from the scale before and after each step, so a run without events has them too;
    floor and collapse are known from events only.

    Args:
        steps: Step table or records.
        events: Event table or records; None when there are none.
        limit: Most points of the line, and most marks of one kind.
    """
    frame, happened = steps_frame(steps), events_frame(events)
    step = column(frame, "step")
    used, after = _log2(column(frame, "loss_scale", 1.0)), _log2(column(frame, "loss_scale_after"))
    overflow, skipped = flags(frame, "overflow"), flags(frame, "skipped")

    overflows = np.flatnonzero(overflow)
    drawn = thin_marks(overflows, min(limit, MAXIMUM_MARKS))
    line = staircase_indices(step, used, limit)
    subjects = subjects_by_step(happened, EventKind.OVERFLOW)
    # One dropped update throws away every micro-batch of its window, not only the one that closed it.
    wasted = float(np.nansum(column(frame, "accumulated", 1.0)[skipped]))
    finite = np.flatnonzero(np.isfinite(after) | np.isfinite(used))
    last = finite[-1] if finite.size else None
    marks = {
        "growth": _marks(step, after, np.flatnonzero(after > used), limit),
        "back-off": _marks(step, after, np.flatnonzero(after < used), limit),
        "floor": _event_marks(step, after, happened, EventKind.SCALE_FLOOR, limit),
        "collapse": _event_marks(step, after, happened, EventKind.SCALE_COLLAPSE, limit),
    }
    return LossScaleNumbers(
        line_steps=step[line],
        line_log2=used[line],
        overflow_steps=step[drawn],
        overflow_log2=used[drawn],
        overflow_subjects=tuple(subjects.get(int(s), "") for s in step[drawn]),
        marks=marks,
        n_steps=len(frame),
        n_overflows=int(overflows.size),
        n_first_overflows=_first_overflows(column(frame, "accumulated", 1.0), overflow),
        wasted_share=min(1.0, wasted / len(frame)) if len(frame) else float("nan"),
        last_log2=float("nan") if last is None else float(after[last] if np.isfinite(after[last]) else used[last]),
    )


def loss_scale_figure(
    steps: StepTable,
    events: EventTable = None,
    *,
    policies: Mapping[str, npt.ArrayLike] | None = None,
    theme: Theme = "auto",
    height: int = 430,
) -> go.Figure:
    """Return ``loss_scale_drawing`` as a figure of plotly's.

    Args:
        steps: Step table or records of one run.
        events: Its event table or records.
        policies: Replayed policies, name -> scale used at every recorded step ``[n_steps]`` (dimensionless).
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.

    Raises:
        ValueError: When a replayed trace has another number of steps than the run.
    """
    return loss_scale_drawing(steps, events, policies=policies, theme=theme, height=height).figure()


def loss_scale_drawing(
    steps: StepTable,
    events: EventTable = None,
    *,
    policies: Mapping[str, npt.ArrayLike] | None = None,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 430,
) -> Drawing:
    """Draw the loss scale against the step, with everything that happened to it.

    Args:
        steps: Step table or records of one run.
        events: Its event table or records.
        policies: Replayed policies, name -> scale used at every recorded step ``[n_steps]`` (dimensionless).
        limit: Most points of the line, and most marks of one kind.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.

    Raises:
        ValueError: When a replayed trace has another number of steps than the run.
    """
    numbers = loss_scale_numbers(steps, events, limit=limit)
    if numbers.n_steps == 0 or numbers.line_steps.size == 0:
        return Drawing.empty(_QUESTION, "No step has been recorded with a loss scale yet.", theme=theme)
    drawing = Drawing(_answer(numbers), _costs(numbers), theme=theme, height=height)
    drawing.add_scatter(
        x=numbers.line_steps,
        y=numbers.line_log2,
        mode="lines",
        line={"shape": "hv", "width": 2, "color": BLUE},
        name="recorded scale",
        customdata=np.exp2(numbers.line_log2),
        hovertemplate="At step %{x:,} the loss scale was %{customdata:,.6g}.<extra></extra>",
    )
    for index, (name, trace) in enumerate((policies or {}).items()):
        _add_policy(drawing, name, trace, steps_frame(steps), index)
    _add_marks(drawing, numbers)
    _lay_out(drawing, numbers)
    return drawing


def _answer(numbers: LossScaleNumbers) -> str:
    if numbers.marks["collapse"][0].size:
        return f"The loss scale collapsed: at its floor, {power_of_two(numbers.last_log2)}, steps went on overflowing"
    if numbers.n_overflows == 0:
        return f"No overflow: the loss scale stands at {power_of_two(numbers.last_log2)}"
    return (
        f"The loss scale stands at {power_of_two(numbers.last_log2)} after {counted(numbers.n_overflows, 'overflow')}"
    )


def _costs(numbers: LossScaleNumbers) -> str:
    text = f"{percent(numbers.wasted_share)} of {counted(numbers.n_steps, 'step')} wasted on updates that were skipped"
    if numbers.n_first_overflows > 1:
        # People ask whether an overflow is normal: those at the start are, a scale that starts high has to come down.
        text += f"; {numbers.n_first_overflows} of {numbers.n_overflows} overflows were the initial search for a scale"
    if numbers.overflow_steps.size < numbers.n_overflows:
        text += f"; {counted(numbers.overflow_steps.size, 'mark')} drawn for {counted(numbers.n_overflows, 'overflow')}"
    return text


def _first_overflows(accumulated: npt.NDArray[np.float64], overflow: npt.NDArray[np.bool_]) -> int:
    """Count the overflows before the first window without one; a window ends where its count of batches does."""
    ends = np.append(accumulated[1:] <= accumulated[:-1], True) if accumulated.size else np.empty(0, dtype=bool)
    good = np.flatnonzero(ends & ~overflow)
    return int(overflow[: good[0] if good.size else None].sum())


def _log2(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log2 where it is finite, NaN elsewhere (a scale of 0, inf or NaN is not on this axis)."""
    good = np.isfinite(values) & (values > 0)
    return np.log2(values, out=np.full_like(values, np.nan), where=good)


def _marks(
    step: npt.NDArray[np.float64], height: npt.NDArray[np.float64], where: npt.NDArray[Any], limit: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    kept = thin_marks(where, limit)
    return step[kept], height[kept]


def _event_marks(
    step: npt.NDArray[np.float64], height: npt.NDArray[np.float64], events: Any, kind: EventKind, limit: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    at = np.array(sorted(subjects_by_step(events, kind)), dtype=np.float64)
    where = np.flatnonzero(np.isin(step, at) & np.isfinite(height))
    return _marks(step, height, where, limit)


def _add_policy(drawing: Drawing, name: str, trace: npt.ArrayLike, frame: Any, index: int) -> None:
    scale = np.asarray(trace, dtype=np.float64)
    if scale.shape != (len(frame),):
        raise ValueError(
            f"`policies[{name!r}]` must give one scale per recorded step ({len(frame)}), got shape {scale.shape}"
        )
    step, log2 = column(frame, "step"), _log2(scale)
    line = staircase_indices(step, log2, MAXIMUM_POINTS)
    dashes = ("dash", "dot", "dashdot", "longdash")
    drawing.add_scatter(
        x=step[line],
        y=log2[line],
        mode="lines",
        line={"shape": "hv", "width": 1.8, "dash": dashes[index % len(dashes)], "color": COLORWAY[3:][index % 4]},
        name=f"replayed: {plain(name)}",
        customdata=np.exp2(log2[line]),
        hovertemplate=f"Under {plain(name)} the scale would have been %{{customdata:,.6g}} at step %{{x:,}}."
        "<extra></extra>",
    )


_MARK_STYLE: dict[str, tuple[str, str, int, str]] = {
    "growth": ("triangle-up", GREEN, 8, "After step %{customdata[0]:,} the scale grew to %{customdata[1]:,.6g}."),
    "back-off": (
        "triangle-down",
        ORANGE,
        9,
        "After step %{customdata[0]:,} the scale backed off to %{customdata[1]:,.6g}.",
    ),
    "floor": (
        "line-ew-open",
        PURPLE,
        14,
        "At step %{customdata[0]:,} the scale reached its floor, %{customdata[1]:,.6g}.",
    ),
    "collapse": (
        "star",
        VERMILLION,
        15,
        "At step %{customdata[0]:,} the scale collapsed: it stayed at its floor and overflowed.",
    ),
}


def _brief(subject: str, most: int = 4) -> str:
    """Name a few leaf modules and count the rest, so that a hover box stays a box."""
    names = [plain(name) for name in subject.split(", ")]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _add_marks(drawing: Drawing, numbers: LossScaleNumbers) -> None:
    for name, (symbol, colour, size, sentence) in _MARK_STYLE.items():
        steps, heights = numbers.marks[name]
        if steps.size == 0:
            continue
        rare = name in {"floor", "collapse"}
        drawing.add_scatter(
            # What a step changed is in force from the next one on: there is the corner of the line.
            x=steps if name == "collapse" else steps + 1,
            y=heights,
            mode="markers+text" if rare else "markers",
            text=[name] * steps.size if rare and steps.size <= 5 else None,
            textposition="top center",
            marker={"symbol": symbol, "size": size, "color": colour, "line": {"width": 2 if rare else 0}},
            name=name,
            customdata=np.stack([steps, np.exp2(heights)], axis=1),
            hovertemplate=sentence + "<extra></extra>",
        )
    if numbers.overflow_steps.size:
        where = [f" in {_brief(subject)}" if subject else "" for subject in numbers.overflow_subjects]
        drawing.add_scatter(
            x=numbers.overflow_steps,
            y=numbers.overflow_log2,
            mode="markers",
            marker={"symbol": "x", "size": 9, "color": VERMILLION},
            name="overflow",
            customdata=list(zip(np.exp2(numbers.overflow_log2).tolist(), where, strict=True)),
            hovertemplate="Step %{x:,} overflowed%{customdata[1]} at scale %{customdata[0]:,.6g}.<extra></extra>",
        )


def _lay_out(drawing: Drawing, numbers: LossScaleNumbers) -> None:
    heights = np.concatenate([np.asarray(trace["y"], dtype=np.float64) for trace in drawing.traces])
    low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
    positions, texts = power_ticks(low, high)
    drawing.set_x("Step (micro-batches)", tickformat=",d")
    drawing.set_y("Loss scale (log2 axis)", tickvals=positions, ticktext=texts, range=[low - 0.9, high + 0.9])
    drawing.set(showlegend=True, margin={"b": 92})
