"""Freezing schedule: which leading groups rest at which step, how much time that saves, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.records import StepRecord
from workbench.figures.frames import StepTable, column, steps_frame
from workbench.figures.labels import counted, percent
from workbench.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    Theme,
    bare_figure,
    empty_figure,
    set_title,
    translucent,
)
from workbench.figures.thinning import bin_edges

__all__ = ["FrozenLayersNumbers", "TimeSaved", "frozen_layers_figure", "frozen_layers_numbers", "time_saved_in_run"]

_MAXIMUM_COLUMNS = 500
_FEWEST_TIMES = 10  # steps of a kind whose median says something
_MOST_TIMES = 1000
_TIME_HEIGHT = 150  # pixels

_QUESTION = "Which layer groups rest at which step?"


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """How much of the step time freezing saves.

    Args:
        share: Share of the step time that was saved; negative when freezing cost time.
        low: Lower end of its 95 % interval; NaN when unknown.
        high: Upper end of its 95 % interval; NaN when unknown.
        limit: Share it would save if frozen groups took no time in the backward pass; NaN when unknown.
    """

    share: float
    low: float = float("nan")
    high: float = float("nan")
    limit: float = float("nan")


@dataclass(frozen=True, eq=False)
class FrozenLayersNumbers:
    """Numbers behind the freezing schedule.

    Args:
        steps: First step of each column ``[columns]``.
        frozen: Share of the column's steps in which a group was frozen ``[groups, columns]``, in [0, 1].
        frozen_share_by_group: Share of all steps in which a group was frozen ``[groups]``.
        frozen_step_share: Share of all steps in which anything was frozen.
        frozen_work_share: Share of the work that frozen groups would have done, groups weighted by ``work``.
        n_groups: Number of groups, the first nearest to the input.
        n_steps: Number of steps.
    """

    steps: npt.NDArray[np.float64]
    frozen: npt.NDArray[np.float64]
    frozen_share_by_group: npt.NDArray[np.float64]
    frozen_step_share: float
    frozen_work_share: float
    n_groups: int
    n_steps: int


def frozen_layers_numbers(
    schedule: Sequence[int] | npt.NDArray[np.int64] | StepTable,
    n_groups: int | None = None,
    *,
    work: Sequence[float] | None = None,
    limit: int = _MAXIMUM_COLUMNS,
) -> FrozenLayersNumbers:
    """Reduce a schedule, or a recorded run, to groups x steps.

    Args:
        schedule: Number of leading frozen groups per step ``[n_steps]``, or the step table of a run.
        n_groups: Number of groups; None takes one more than the most that were ever frozen.
        work: Work per group ``[n_groups]``, any unit (parameters, milliseconds of backward); None weighs all alike.
        limit: Most columns; neighbouring steps are averaged when there are more.

    Raises:
        ValueError: When a step freezes more groups than there are, or ``work`` has another length or no positive sum.
    """
    steps, frozen = _read_schedule(schedule)
    most = int(frozen.max(initial=0))
    groups = most + 1 if n_groups is None else n_groups
    if most > groups:
        raise ValueError(f"`schedule` freezes {most} groups, but there are only {groups}")
    weights = np.ones(groups) if work is None else np.asarray(work, dtype=np.float64)
    if weights.shape != (groups,) or not weights.sum() > 0:
        raise ValueError(f"`work` must give one number per group ({groups}) with a positive sum, got {work!r}")
    n = frozen.size
    edges = bin_edges(n, limit)
    cells = (np.arange(groups)[:, None] < frozen[None, :]).astype(np.float64)
    by_group = cells.mean(axis=1) if n else np.zeros(groups)
    widths = np.diff(edges)
    binned = np.add.reduceat(cells, edges[:-1], axis=1) / widths if n else cells
    return FrozenLayersNumbers(
        steps=steps[edges[:-1]] if n else steps,
        frozen=binned,
        frozen_share_by_group=by_group,
        frozen_step_share=float((frozen > 0).mean()) if n else float("nan"),
        frozen_work_share=float(by_group @ weights / weights.sum()) if n else float("nan"),
        n_groups=groups,
        n_steps=n,
    )


def time_saved_in_run(
    steps: StepTable, n_groups: int | None = None, *, work: Sequence[float] | None = None, seed: int = 0
) -> TimeSaved | None:
    """Read from a run itself what freezing saved: its steps against those of them that froze nothing.

    A step's time is judged by the median of its kind (so many groups frozen), because a pause or an evaluation makes
    single steps long; the interval comes from resampling within kinds. A kind that was timed less than ten times counts
    as the next one that freezes less, so that it claims too little rather than too much.

    Args:
        steps: Step table or records of a run that freezes.
        n_groups: See ``frozen_layers_numbers``.
        work: See ``frozen_layers_numbers``; the limit rests on it.
        seed: Seed of the resampling.

    Returns:
        The time saved; None when steps that freeze nothing, or those of every kind that freezes something, were timed
        less than ten times.
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
    rng = np.random.default_rng(seed)
    weights = np.array(counts) / sum(counts)
    middles = np.stack([_resampled_medians(kind, rng) for kind in kinds])  # [kinds, repetitions]
    saved = 1 - weights @ middles / middles[0]
    share = 1 - float(weights @ [np.median(kind) for kind in kinds] / np.median(full))
    low, high = np.quantile(saved, [0.025, 0.975])
    backward, whole = column(frame, "time.backward")[frozen == 0], times[frozen == 0]
    timed = np.isfinite(backward) & np.isfinite(whole)
    numbers = frozen_layers_numbers(frame, n_groups, work=work)
    limit = float(backward[timed].sum() / whole[timed].sum()) if timed.any() else float("nan")
    return TimeSaved(share, float(low), float(high), limit * numbers.frozen_work_share)


def frozen_layers_figure(
    schedule: Sequence[int] | npt.NDArray[np.int64] | StepTable,
    n_groups: int | None = None,
    *,
    work: Sequence[float] | None = None,
    saved: TimeSaved | None = None,
    share: float = float("nan"),
    theme: Theme = "auto",
    height: int = 380,
) -> go.Figure:
    """Draw the schedule as groups x steps, beside the share of steps each group rests and the time that saved.

    Args:
        schedule: See ``frozen_layers_numbers``.
        n_groups: See ``frozen_layers_numbers``.
        work: See ``frozen_layers_numbers``.
        saved: Time saved, measured against O0 or by ``time_saved_in_run``; None leaves its row out.
        share: Share of frozen steps that a schedule in whole periods has, for the title; NaN counts the steps given.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height of the schedule, pixels; the time saved adds to it.
    """
    numbers = frozen_layers_numbers(schedule, n_groups, work=work)
    if numbers.n_steps == 0:
        return empty_figure(_QUESTION, "No step has been scheduled or recorded yet.", theme=theme)
    figure = _panes(height, saved is not None, theme)
    groups = np.arange(1, numbers.n_groups + 1)
    figure.add_heatmap(
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
        hovertemplate="From step %{x:,}, group %{y} is frozen in %{customdata:.0f} % of the steps.<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_bar(
        x=100 * numbers.frozen_share_by_group,
        y=groups,
        orientation="h",
        marker={"color": BLUE},
        text=[f"{100 * share:.0f} %" for share in numbers.frozen_share_by_group],
        textposition=["inside" if share > 0.6 else "outside" for share in numbers.frozen_share_by_group],
        textangle=0,
        name="share of steps frozen",
        hovertemplate="Group %{y} is frozen in %{x:.1f} % of all steps.<extra></extra>",
        row=1,
        col=2,
    )
    weighed = "weighted by their work" if work is not None else "all groups counted alike"
    title = f"Frozen steps: {percent(numbers.frozen_step_share)} of {counted(numbers.n_steps, 'step')}"
    if np.isfinite(share):
        title = f"Frozen steps: {percent(share)}, here over {counted(numbers.n_steps, 'step')}"
    if saved is not None:
        _add_time(figure, saved)
        title += f", which {_effect(saved)}"
    figure.update_layout(
        height=height + (_TIME_HEIGHT if saved is not None else 0),
        showlegend=False,
    )
    set_title(
        figure,
        title,
        f"frozen groups would have done {percent(numbers.frozen_work_share)} of the backward work ({weighed}); "
        "filled = frozen",
    )
    figure.update_yaxes(
        title_text="Group (1 = input)",
        tickvals=_group_ticks(numbers.n_groups),
        autorange="reversed",
        showgrid=False,
        row=1,
        col=1,
    )
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d", showgrid=False, row=1, col=1)
    figure.update_xaxes(title_text="Steps frozen (%)", range=[0, 100], row=1, col=2)
    return figure


def _panes(height: int, with_time: bool, theme: Theme) -> go.Figure:
    columns: dict[str, Any] = {
        "figure": bare_figure(theme),
        "cols": 2,
        "column_widths": [0.76, 0.24],
        "shared_yaxes": True,
        "horizontal_spacing": 0.03,
    }
    if not with_time:
        return make_subplots(rows=1, **columns)
    return make_subplots(
        rows=2,
        row_heights=[height, _TIME_HEIGHT - 60],
        vertical_spacing=0.2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        **columns,
    )


def _add_time(figure: go.Figure, saved: TimeSaved) -> None:
    """Draw the time saved as a bar with its interval, and the limit as a line across."""
    known = np.isfinite(saved.low) and np.isfinite(saved.high)
    interval = f" (95 % interval {100 * saved.low:.1f} to {100 * saved.high:.1f} %)" if known else ""
    figure.add_bar(
        x=[100 * saved.share],
        y=["saved"],
        orientation="h",
        width=0.6,
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * (saved.high - saved.share)],
            "arrayminus": [100 * (saved.share - saved.low)],
            "color": GREY,
            "thickness": 2,
            "visible": bool(known),
        },
        name="time saved",
        hovertemplate=f"Freezing changed the step time by {-100 * saved.share:+.1f} %{interval}.<extra></extra>",
        row=2,
        col=1,
    )
    if np.isfinite(saved.limit):
        figure.add_scatter(
            x=[100 * saved.limit],
            y=["saved"],
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 40, "color": ORANGE, "line": {"width": 3, "color": ORANGE}},
            name="limit",
            hovertemplate="If frozen groups took no time in the backward pass, %{x:.1f} % would be saved."
            "<extra></extra>",
            row=2,
            col=1,
        )
        figure.add_annotation(
            text=f"limit {percent(saved.limit)}",
            x=100 * saved.limit,
            xref="x3",
            y=1,
            yref="y3 domain",
            yanchor="bottom",
            showarrow=False,
            font={"size": 12},
        )
    ends = [100 * value for value in (0.0, saved.share, saved.low, saved.high, saved.limit) if np.isfinite(value)]
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    reach = [min(ends) - (margin if min(ends) < 0 else 0.0), max(ends) + margin]
    figure.update_xaxes(title_text="Step time saved (%)", range=reach, zeroline=True, row=2, col=1)
    figure.update_yaxes(title_text="Time", showticklabels=False, row=2, col=1)


def _effect(saved: TimeSaved) -> str:
    if saved.low <= 0 <= saved.high:
        return f"changed the step time by too little to tell ({100 * saved.low:.0f} to {100 * saved.high:.0f} % saved)"
    if saved.share >= 0:
        limit = f" (limit {percent(saved.limit)})" if np.isfinite(saved.limit) else ""
        return f"saved {percent(saved.share)} of the step time{limit}"
    return f"made a step {percent(-saved.share)} longer"


def _resampled_medians(
    times: npt.NDArray[np.float64], rng: np.random.Generator, repetitions: int = 400
) -> npt.NDArray[np.float64]:
    """Return medians of resampled times ``[repetitions]``; a long run is thinned, which only widens the interval."""
    kept = times[:: max(1, times.size // _MOST_TIMES)]
    medians: npt.NDArray[np.float64] = np.median(rng.choice(kept, size=(repetitions, kept.size)), axis=1)
    return medians


def _read_schedule(
    schedule: Sequence[int] | npt.NDArray[np.int64] | StepTable,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    if isinstance(schedule, pd.DataFrame) or (len(schedule) and isinstance(schedule[0], StepRecord)):
        frame = steps_frame(cast(StepTable, schedule))
        return column(frame, "step"), np.nan_to_num(column(frame, "frozen_groups", 0.0)).astype(np.int64)
    frozen = np.asarray(schedule, dtype=np.int64)
    return np.arange(frozen.size, dtype=np.float64), frozen


def _group_ticks(n_groups: int) -> list[int]:
    return list(range(1, n_groups + 1, max(1, n_groups // 12)))
