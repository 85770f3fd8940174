"""Freezing schedule: which leading groups rest at which step, and how much work that saves at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import StepTable, column, steps_frame
from workbench.figures.labels import counted, percent
from workbench.figures.theme import BLUE, GREY, Theme, empty_figure, figure_template, translucent
from workbench.figures.thinning import bin_edges
from workbench.records import StepRecord

__all__ = ["FrozenLayersNumbers", "frozen_layers_figure", "frozen_layers_numbers"]

_MAXIMUM_COLUMNS = 500
_QUESTION = "Which layer groups rest at which step?"


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


def frozen_layers_figure(
    schedule: Sequence[int] | npt.NDArray[np.int64] | StepTable,
    n_groups: int | None = None,
    *,
    work: Sequence[float] | None = None,
    theme: Theme = "auto",
    height: int = 380,
) -> go.Figure:
    """Draw the schedule as groups x steps, beside the share of steps each group rests.

    Args:
        schedule: See ``frozen_layers_numbers``.
        n_groups: See ``frozen_layers_numbers``.
        work: See ``frozen_layers_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = frozen_layers_numbers(schedule, n_groups, work=work)
    if numbers.n_steps == 0:
        return empty_figure(_QUESTION, "No step has been scheduled or recorded yet.", theme=theme)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.76, 0.24], shared_yaxes=True, horizontal_spacing=0.03)
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
        textposition="auto",
        name="share of steps frozen",
        hovertemplate="Group %{y} is frozen in %{x:.1f} % of all steps.<extra></extra>",
        row=1,
        col=2,
    )
    weighed = "weighted by their work" if work is not None else "all groups counted alike"
    figure.update_layout(
        template=figure_template(theme),
        height=height,
        showlegend=False,
        title={
            "text": f"Frozen steps: {percent(numbers.frozen_step_share)} of {counted(numbers.n_steps, 'step')}",
            "subtitle": {
                "text": f"frozen groups would have done {percent(numbers.frozen_work_share)} of the backward work "
                f"({weighed}); filled = frozen"
            },
        },
    )
    figure.update_yaxes(
        title_text="Group (1 = input)", tickvals=_group_ticks(numbers.n_groups), autorange="reversed", col=1
    )
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d", showgrid=False, col=1)
    figure.update_xaxes(title_text="Steps frozen (%)", range=[0, 100], col=2)
    return figure


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
