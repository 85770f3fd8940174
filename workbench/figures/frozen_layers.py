"""Freezing schedule: which leading groups rest at which step, how much time that saves, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.records import StepRecord
from workbench.figures.drawing import Drawing, Mark, interval, shares_of
from workbench.figures.frames import StepTable, column, steps_frame
from workbench.figures.labels import counted, percent
from workbench.figures.theme import BLUE, GREY, ORANGE, Theme, translucent
from workbench.figures.thinning import Floats, bin_edges

Schedule: TypeAlias = Sequence[int] | npt.NDArray[np.int64] | StepTable

_MAXIMUM_COLUMNS = 500
_FEWEST_TIMES = 10  # steps of a kind whose median says something
_MOST_TIMES = 1000
_TIME_HEIGHT = 150  # pixels

_QUESTION = "Which layer groups are frozen at which step?"


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """Which share of the step time freezing saves; an end that is not known is NaN."""

    share: float  # negative when freezing cost time
    low: float = float("nan")  # the ends of its 95 % interval
    high: float = float("nan")
    limit: float = float("nan")  # what it would save if frozen groups took no time in the backward pass


@dataclass(frozen=True, eq=False)
class FrozenLayersNumbers:
    """Numbers behind the freezing schedule; shares lie in [0, 1]."""

    steps: Floats  # first step of each column
    frozen: Floats  # share of the column's steps in which a group was frozen ``[groups, columns]``
    frozen_share_by_group: Floats  # share of all steps in which a group was frozen
    frozen_step_share: float  # share of all steps in which anything was frozen
    frozen_work_share: float  # share of the work that frozen groups would have done, all groups counted alike
    n_groups: int  # the first is nearest to the input
    n_steps: int


def frozen_layers_numbers(
    schedule: Schedule, n_groups: int | None = None, *, limit: int = _MAXIMUM_COLUMNS
) -> FrozenLayersNumbers:
    """Reduce a schedule, or a recorded run, to groups x steps; arguments as for ``frozen_layers_figure``.

    Neighbouring steps are averaged when there are more than ``limit``. A ValueError tells when a step freezes more
    groups than there are.
    """
    steps, frozen = _read_schedule(schedule)
    most = int(frozen.max(initial=0))
    groups = most + 1 if n_groups is None else n_groups
    if most > groups:
        raise ValueError(f"`schedule` freezes {most} groups, but there are only {groups}")
    n = frozen.size
    edges = bin_edges(n, limit)
    cells = (np.arange(groups)[:, None] < frozen[None, :]).astype(np.float64)
    by_group = cells.mean(axis=1) if n else np.zeros(groups)
    return FrozenLayersNumbers(
        steps=steps[edges[:-1]],
        frozen=np.add.reduceat(cells, edges[:-1], axis=1) / np.diff(edges),
        frozen_share_by_group=by_group,
        frozen_step_share=float((frozen > 0).mean()) if n else float("nan"),
        frozen_work_share=float(by_group.mean()) if n else float("nan"),
        n_groups=groups,
        n_steps=n,
    )


def time_saved_in_run(steps: StepTable, n_groups: int | None = None) -> TimeSaved | None:
    """Read from a run itself what freezing saved: its steps against those of them that froze nothing.

    A step's time is judged by the median of its kind (so many groups frozen), because a pause or an evaluation
    makes single steps long; the interval comes from resampling within kinds. A kind that was timed less than ten
    times counts as the next one that freezes less, so that it claims too little rather than too much. None when
    steps that freeze nothing, or those of every kind that freezes something, were timed less than ten times.
    """
    frame = steps_frame(steps).iloc[1:]  # the first step allocates
    frozen = np.nan_to_num(column(frame, "frozen_groups", 0.0)).astype(np.int64)
    times = column(frame, "step_ms")
    full = times[(frozen == 0) & np.isfinite(times)]
    if full.size < _FEWEST_TIMES:
        return None
    kinds, counts = [full], [full.size]
    for kind in np.unique(frozen[frozen > 0]):
        timed = times[(frozen == kind) & np.isfinite(times)]
        if timed.size >= _FEWEST_TIMES:
            kinds.append(timed)
            counts.append(timed.size)
        else:
            counts[-1] += timed.size
    if len(kinds) < 2:
        return None
    rng = np.random.default_rng(0)
    weights = np.array(counts) / sum(counts)
    middles = np.stack([_resampled_medians(kind, rng) for kind in kinds])  # [kinds, repetitions]
    saved = 1 - weights @ middles / middles[0]
    share = 1 - float(weights @ [np.median(kind) for kind in kinds] / np.median(full))
    low, high = np.quantile(saved, [0.025, 0.975])
    backward, whole = column(frame, "time.backward")[frozen == 0], times[frozen == 0]
    timed = np.isfinite(backward) & np.isfinite(whole)
    numbers = frozen_layers_numbers(frame, n_groups)
    limit = float(backward[timed].sum() / whole[timed].sum()) if timed.any() else float("nan")
    return TimeSaved(share, float(low), float(high), limit * numbers.frozen_work_share)


def frozen_layers_drawing(
    schedule: Schedule,
    n_groups: int | None = None,
    *,
    saved: TimeSaved | None = None,
    share: float = float("nan"),
    theme: Theme = "auto",
    height: int = 380,
) -> Drawing:
    """Draw the schedule as groups x steps, beside the share of steps each group rests and the time that saved.

    ``schedule`` is the number of leading frozen groups per update ``[n_updates]``, or the step table of a run; without
    ``n_groups`` there is one group more than were ever frozen. ``share`` is the share of frozen steps that a schedule
    in whole periods has, for the title; NaN counts the steps given.
    """
    numbers, is_run = frozen_layers_numbers(schedule, n_groups), _is_run(schedule)
    if numbers.n_steps == 0:
        return Drawing.empty(_QUESTION, "No step has been scheduled or recorded yet.", theme=theme)
    title = f"Frozen steps: {percent(numbers.frozen_step_share)} of {counted(numbers.n_steps, 'step')}"
    if np.isfinite(share):
        title = f"Frozen steps: {percent(share)}, here over {counted(numbers.n_steps, 'update')}"
    lost = f"{percent(numbers.frozen_work_share)} of the backward work (all groups counted alike)"
    subtitle = f"frozen groups would have done {lost}; filled = frozen"
    if saved is not None:
        title += f", which {_effect(saved)}"
    drawing = Drawing(title, subtitle, theme=theme, height=height + (_TIME_HEIGHT if saved is not None else 0))
    groups, by_group = np.arange(1, numbers.n_groups + 1), numbers.frozen_share_by_group.tolist()
    drawing.add(
        "heatmap",
        ("From step " if is_run else "From update ")
        + "%{x:,}, group %{y} is frozen in %{customdata:.0f} % of the steps.",
        x=numbers.steps,
        y=groups,
        z=numbers.frozen,
        customdata=100 * numbers.frozen,
        zmin=0,
        zmax=1,
        colorscale=[[0, translucent(GREY, 0.14)], [1, BLUE]],
        ygap=2,
        showscale=False,
        name="schedule",
    )
    drawing.bars(
        (100 * numbers.frozen_share_by_group, groups),
        BLUE,
        "Group %{y} is frozen in %{x:.1f} % of all steps.",
        text=[f"{100 * rests:.0f} %" for rests in by_group],
        textposition=["inside" if rests > 0.6 else "outside" for rests in by_group],
        textangle=0,
        name="share of steps frozen",
        row=2,
    )
    left, right = shares_of([0.76, 0.24], 0.03)
    upper = (0.0, 1.0)
    if saved is not None:
        lower, upper = shares_of([_TIME_HEIGHT - 60, height], 0.2)
        _add_time(drawing, saved, lower)
    ticks = list(range(1, numbers.n_groups + 1, max(1, numbers.n_groups // 12)))
    drawing.set_steps(row=1, domain=left, showgrid=False)
    if not is_run:
        drawing.set_x("Update", row=1)
    drawing.set_y("Group (1 = input)", domain=upper, tickvals=ticks, autorange="reversed", showgrid=False)
    drawing.set_x("Steps frozen (%)", row=2, domain=right, anchor="y2", range=[0, 100])
    drawing.set(yaxis2={"anchor": "x2", "domain": upper, "matches": "y", "showticklabels": False})
    drawing.set(showlegend=False)
    return drawing


def _add_time(drawing: Drawing, saved: TimeSaved, domain: tuple[float, float]) -> None:
    """Draw the time saved as a bar with its interval, and the limit as a line across, in a third pane."""
    share, low, high, limit = (100 * value for value in (saved.share, saved.low, saved.high, saved.limit))
    range_text = f" (95 % interval {low:.1f} to {high:.1f} %)" if np.isfinite([low, high]).all() else ""
    drawing.bars(
        ([share], ["saved"]),
        BLUE,
        f"Freezing changed the step time by {-share:+.1f} %{range_text}.",
        width=0.6,
        error_x=interval([share], [low], [high], GREY, thickness=2),
        name="time saved",
        row=3,
    )
    if np.isfinite(limit):
        hover = "If frozen groups took no time in the backward pass, %{x:.1f} % would be saved."
        drawing.marks(([limit], ["saved"]), Mark("line-ns-open", 40, ORANGE, edge=3), hover, name="limit", row=3)
        place = {"x": limit, "xref": "x3", "y": 1, "yref": "y3 domain", "yanchor": "bottom", "font": {"size": 12}}
        drawing.note(f"limit {percent(saved.limit)}", **place)
    ends = [value for value in (0.0, share, low, high, limit) if np.isfinite(value)]
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    reach = [min(ends) - (margin if min(ends) < 0 else 0.0), max(ends) + margin]
    drawing.set_x("Step time saved (%)", row=3, anchor="y3", range=reach, zeroline=True)
    drawing.set_y("Time", row=3, anchor="x3", domain=domain, showticklabels=False)


def _effect(saved: TimeSaved) -> str:
    if saved.low <= 0 <= saved.high:
        return f"changed the step time by too little to tell ({100 * saved.low:.0f} to {100 * saved.high:.0f} % saved)"
    if saved.share >= 0:
        limit = f" (limit {percent(saved.limit)})" if np.isfinite(saved.limit) else ""
        return f"saved {percent(saved.share)} of the step time{limit}"
    return f"made a step {percent(-saved.share)} longer"


def _resampled_medians(times: Floats, rng: np.random.Generator, repetitions: int = 400) -> Floats:
    """Return medians of resampled times ``[repetitions]``; a long run is thinned, which only widens the interval."""
    kept = times[:: max(1, times.size // _MOST_TIMES)]
    medians: Floats = np.median(rng.choice(kept, size=(repetitions, kept.size)), axis=1)
    return medians


def _is_run(schedule: Schedule) -> bool:
    return isinstance(schedule, pd.DataFrame) or (len(schedule) > 0 and isinstance(schedule[0], StepRecord))


def _read_schedule(schedule: Schedule) -> tuple[Floats, npt.NDArray[np.int64]]:
    if _is_run(schedule):
        frame = steps_frame(cast(StepTable, schedule))
        return column(frame, "step"), np.nan_to_num(column(frame, "frozen_groups", 0.0)).astype(np.int64)
    frozen = np.asarray(schedule, dtype=np.int64)
    return np.arange(frozen.size, dtype=np.float64), frozen
