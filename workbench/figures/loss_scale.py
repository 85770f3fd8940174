"""Loss-scale trace: which scale was in force, where it overflowed, what that cost; log2, as every rule multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.core.records import EventKind
from workbench.figures import frames
from workbench.figures.drawing import OVERFLOW, Drawing, Mark, Stroke
from workbench.figures.frames import EventTable, StepTable
from workbench.figures.labels import counted, percent, plain, power_of_two
from workbench.figures.theme import BLUE, COLORWAY, DASHES, GREEN, ORANGE, PURPLE, VERMILLION, Theme
from workbench.figures.thinning import MAXIMUM_MARKS, MAXIMUM_POINTS, Floats, Line, thin_marks, thin_stairs

LOSS_SCALE_COLUMNS = ("step", "loss_scale", "loss_scale_after", "overflow", "skipped", "accumulated")
"""Columns of a run's steps that the trace is drawn from."""

_QUESTION = "Which loss scale fits, and what did overflows cost?"
_MARKS: dict[str, tuple[Mark, str]] = {
    "growth": (Mark("triangle-up", 8, GREEN), "After step {step} the scale grew to {scale}."),
    "back-off": (Mark("triangle-down", 9, ORANGE), "After step {step} the scale backed off to {scale}."),
    "floor": (Mark("line-ew-open", 14, PURPLE, edge=2), "At step {step} the scale reached its floor, {scale}."),
    "collapse": (
        Mark("star", 15, VERMILLION, edge=2),
        "At step {step} the scale collapsed: it stayed at its floor and overflowed.",
    ),
}


@dataclass(frozen=True, eq=False)
class LossScaleNumbers:
    """Numbers behind the loss-scale trace; every array is aligned with the line or with its marks."""

    line: Line  # log2 of the scale that was used, thinned
    overflow: Line  # log2 of the scale used at the steps that are drawn as overflow
    overflow_subjects: tuple[str, ...]  # leaf modules named by the events, empty where none was named
    marks: Mapping[str, Line]  # steps and log2 scale of "growth", "back-off", "floor", "collapse"
    n_steps: int  # micro-batches in the record
    n_overflows: int  # in the record, drawn or not
    n_first_overflows: int  # before the first update that was applied: the search for a scale that works
    wasted_share: float  # of all micro-batches, whose gradient was thrown away, in [0, 1]
    last_log2: float  # of the last known scale; NaN when there is none


def loss_scale_numbers(steps: StepTable, events: EventTable = None, *, limit: int = MAXIMUM_POINTS) -> LossScaleNumbers:
    """Reduce a recorded run to the numbers of its loss-scale trace; arguments as for ``loss_scale_figure``.

    Growth and back-off are read from the scale before and after each step, so a run without events has them too;
    floor and collapse are known from events only.
    """
    frame, events = frames.steps_frame(steps), frames.events_frame(events)
    step, overflow = frames.column(frame, "step"), frames.flags(frame, "overflow")
    used = frames.log2_known(frames.column(frame, "loss_scale", 1.0))
    after = frames.log2_known(frames.column(frame, "loss_scale_after"))
    overflows, weights = np.flatnonzero(overflow), frames.stands_for(frame)
    drawn = thin_marks(overflows, min(limit, MAXIMUM_MARKS))
    changed = after[-1:] != used[-1:]  # by the last step: its mark stands at a corner of the line like the others
    subjects = frames.subjects_by_step(events, EventKind.OVERFLOW)

    def marks(where: npt.NDArray[Any]) -> Line:
        kept = thin_marks(where, limit)
        return Line(step[kept], after[kept])

    def event_marks(kind: EventKind) -> Line:
        at = frames.column(frames.events_of(events, kind), "step")
        return marks(np.flatnonzero(np.isin(step, at) & np.isfinite(after)))

    return LossScaleNumbers(
        line=thin_stairs(np.append(step, step[-1:][changed] + 1), np.append(used, after[-1:][changed]), limit),
        overflow=Line(step[drawn], used[drawn]),
        overflow_subjects=tuple(subjects.get(int(s), "") for s in step[drawn]),
        marks={
            "growth": marks(np.flatnonzero(after > used)),
            "back-off": marks(np.flatnonzero(after < used)),
            "floor": event_marks(EventKind.SCALE_FLOOR),
            "collapse": event_marks(EventKind.SCALE_COLLAPSE),
        },
        n_steps=int(weights.sum()),
        n_overflows=int(weights[overflows].sum()),
        n_first_overflows=_first_overflows(frames.column(frame, "accumulated", 1.0), overflow),
        wasted_share=frames.wasted_share(frame),
        last_log2=frames.last_known(np.where(np.isfinite(after), after, used)),
    )


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

    ``policies`` are replayed ones, name -> scale used at every recorded step ``[n_steps]``; of another length they
    raise a ValueError.
    """
    numbers = loss_scale_numbers(steps, events, limit=limit)
    if numbers.line.x.size == 0:
        return Drawing.empty(_QUESTION, "No step has been recorded with a loss scale yet.", theme=theme)
    drawing = Drawing(_answer(numbers), _costs(numbers), theme=theme, height=height)
    hover, stroke = "At step %{x:,} the loss scale was %{customdata:,.6~g}.", Stroke(BLUE, shape="hv")
    scale = np.exp2(numbers.line.y)
    drawing.line(numbers.line, stroke, hover, name="recorded scale", customdata=scale)
    step = frames.column(frames.steps_frame(steps), "step")
    for index, (name, trace) in enumerate((policies or {}).items()):
        _add_policy(drawing, name, np.asarray(trace, dtype=np.float64), step, index)
    _add_marks(drawing, numbers)
    drawing.set_steps()
    drawing.set_powers("Loss scale (log2 axis)")
    drawing.show_legend()
    return drawing


def _answer(numbers: LossScaleNumbers) -> str:
    last = power_of_two(numbers.last_log2)
    if numbers.marks["collapse"].x.size:
        return f"The loss scale collapsed: at its floor, {last}, steps went on overflowing"
    if numbers.n_overflows == 0:
        return f"No overflow: the loss scale stands at {last}"
    return f"The loss scale stands at {last} after {counted(numbers.n_overflows, 'overflow')}"


def _costs(numbers: LossScaleNumbers) -> str:
    text = f"{percent(numbers.wasted_share)} of {counted(numbers.n_steps, 'step')} wasted on updates that were skipped"
    if numbers.n_first_overflows > 1:
        # People ask whether an overflow is normal: those at the start are, a scale that starts high has to come down.
        text += f"; {numbers.n_first_overflows} of {numbers.n_overflows} overflows were the initial search for a scale"
    if numbers.overflow.x.size < numbers.n_overflows:
        text += f"; {counted(numbers.overflow.x.size, 'mark')} drawn for {counted(numbers.n_overflows, 'overflow')}"
    return text


def _first_overflows(accumulated: Floats, overflow: npt.NDArray[np.bool_]) -> int:
    """Count the overflows before the first window without one; a window ends where its count of batches does."""
    ends = np.append(accumulated[1:] <= accumulated[:-1], True) if accumulated.size else np.empty(0, dtype=bool)
    good = np.flatnonzero(ends & ~overflow)
    return int(overflow[: good[0] if good.size else None].sum())


def _add_policy(drawing: Drawing, name: str, scale: Floats, step: Floats, index: int) -> None:
    if scale.shape != step.shape:
        raise ValueError(
            f"`policies[{name!r}]` must give one scale per recorded step ({step.size}), got shape {scale.shape}"
        )
    line = thin_stairs(step, frames.log2_known(scale), MAXIMUM_POINTS)
    stroke = Stroke(COLORWAY[3:][index % 4], 1.8, DASHES[1:5][index % 4], "hv")
    hover = f"Under {plain(name)} the scale would have been %{{customdata:,.6~g}} at step %{{x:,}}."
    drawing.line(line, stroke, hover, name=f"replayed: {plain(name)}", customdata=np.exp2(line.y))


def _brief(subject: str, most: int = 4) -> str:
    """Name a few leaf modules and count the rest, so that a hover box stays a box."""
    names = [plain(name) for name in subject.split(", ")]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _add_marks(drawing: Drawing, numbers: LossScaleNumbers) -> None:
    for name, (mark, hover) in _MARKS.items():
        steps, heights = numbers.marks[name]
        # What a step changed is in force from the next one on: there is the corner of the line.
        at = steps if name == "collapse" else steps + 1
        words = [name] * steps.size if name in {"floor", "collapse"} and steps.size <= 5 else None
        carried = np.stack([steps, np.exp2(heights)], axis=1)
        said = hover.format(step="%{customdata[0]:,}", scale="%{customdata[1]:,.6~g}")
        drawing.marks((at, heights), mark, said, text=words, textposition="top center", name=name, customdata=carried)
    where = [f" in {_brief(subject)}" if subject else "" for subject in numbers.overflow_subjects]
    used = list(zip(np.exp2(numbers.overflow.y).tolist(), where, strict=True))
    hover = "Step %{x:,} overflowed%{customdata[1]} at scale %{customdata[0]:,.6~g}."
    drawing.marks(numbers.overflow, OVERFLOW, hover, name="overflow", customdata=used)
