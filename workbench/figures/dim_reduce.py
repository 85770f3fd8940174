"""DimReduce against the run that made its snapshots: who reaches which loss when, and how the steps were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    subjects_by_step,
)
from workbench.figures.labels import counted, percent, plain
from workbench.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Theme,
    bare_figure,
    empty_figure,
    set_title,
    translucent,
)
from workbench.figures.thinning import MAXIMUM_POINTS, thin_indices, thin_marks

__all__ = ["DimReduceNumbers", "SubspacePair", "dim_reduce_figure", "dim_reduce_numbers", "first_at_or_below"]

_QUESTION = "Does DimReduce reach the loss of its warm-up in fewer steps?"


@dataclass(frozen=True, eq=False)
class SubspacePair:
    """A run that recorded weight snapshots, and the run in the subspace that they span.

    Args:
        label: Name, for example ``"seed 3"``.
        warm_up: Evaluations of the first run: pairs (micro-batches done, loss).
        reduced: Evaluations of the second run; empty draws the losses of its steps, as of a run that goes on.
        steps: Step table or records of the second run, with the columns of DimReduce.
        events: Its event table or records; None when there are none.
    """

    label: str
    warm_up: Sequence[tuple[int, float]]
    reduced: Sequence[tuple[int, float]]
    steps: StepTable
    events: EventTable = None


@dataclass(frozen=True, eq=False)
class DimReduceNumbers:
    """Numbers behind one pair's curves.

    Args:
        label: Name of the pair.
        warm_up_x: Micro-batches done at the first run's evaluations.
        warm_up_loss: Loss there.
        target: Loss of the first run at its end; NaN without evaluations.
        warm_up_steps: Micro-batches of the first run.
        x: Micro-batches done at the second run's evaluations.
        loss: Loss there.
        reached: Micro-batches after which the second run first stood at or below the target; NaN when it never did.
        rho_x: Steps whose share of the quasi-Newton step is drawn.
        rho: That share; 0 where the search failed.
        failed_x: Steps whose line search failed, thinned.
        n_failed: How many there are.
        n_steps: Recorded steps of the second run.
        condition_x: Steps with a condition number.
        condition: Condition number of the inverse Hessian in the subspace.
        explained_variance: Share of the snapshots' variance in the subspace; NaN when unknown.
        mean_trials: Forward passes of the line search per step, mean; NaN when unknown.
    """

    label: str
    warm_up_x: npt.NDArray[np.float64]
    warm_up_loss: npt.NDArray[np.float64]
    target: float
    warm_up_steps: float
    x: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    reached: float
    rho_x: npt.NDArray[np.float64]
    rho: npt.NDArray[np.float64]
    failed_x: npt.NDArray[np.float64]
    n_failed: int
    n_steps: int
    condition_x: npt.NDArray[np.float64]
    condition: npt.NDArray[np.float64]
    explained_variance: float
    mean_trials: float


def first_at_or_below(curve: Sequence[tuple[int, float]], target: float) -> float:
    """Return after how many micro-batches a curve first stands at or below a loss; NaN when it never does.

    Example:
        >>> first_at_or_below([(0, 2.3), (10, 0.4), (20, 0.5)], 0.4)
        10.0
    """
    return next((float(step) for step, loss in curve if loss <= target), float("nan"))


def dim_reduce_numbers(pair: SubspacePair, *, limit: int = MAXIMUM_POINTS) -> DimReduceNumbers:
    """Reduce a pair of runs to the numbers of its curves.

    Args:
        pair: The runs.
        limit: Most points of a line.
    """
    frame = steps_frame(pair.steps)
    step, rho = column(frame, "step"), column(frame, "dim_reduce.rho")
    condition, explained = column(frame, "dim_reduce.condition"), column(frame, "dim_reduce.explained_variance")
    trials = column(frame, "dim_reduce.trials")
    failed = np.array(sorted(subjects_by_step(events_frame(pair.events), EventKind.LINE_SEARCH_FAILED)), np.float64)
    taken, known = np.flatnonzero(np.isfinite(rho)), np.flatnonzero(np.isfinite(condition))
    taken = taken[thin_indices(step[taken], rho[taken], limit)]
    known = known[thin_indices(step[known], condition[known], limit)]
    first, second = np.array(pair.warm_up, np.float64).reshape(-1, 2), np.array(pair.reduced, np.float64).reshape(-1, 2)
    if not len(second):
        loss = column(frame, "loss")
        drawn = thin_indices(step, loss, limit)
        second = np.stack([step[drawn], loss[drawn]], axis=1)
    target = float(first[-1, 1]) if len(first) else float("nan")
    shares = explained[np.isfinite(explained)]
    return DimReduceNumbers(
        label=pair.label,
        warm_up_x=first[:, 0],
        warm_up_loss=first[:, 1],
        target=target,
        warm_up_steps=float(first[-1, 0]) if len(first) else float("nan"),
        x=second[:, 0],
        loss=second[:, 1],
        reached=first_at_or_below(pair.reduced, target),
        rho_x=step[taken],
        rho=rho[taken],
        failed_x=failed[thin_marks(np.arange(failed.size), limit)],
        n_failed=int(failed.size),
        n_steps=len(frame),
        condition_x=step[known],
        condition=condition[known],
        explained_variance=float(shares[0]) if shares.size else float("nan"),
        mean_trials=float(np.nanmean(trials)) if np.isfinite(trials).any() else float("nan"),
    )


def dim_reduce_figure(
    pairs: Sequence[SubspacePair], *, loss_name: str = "Loss", theme: Theme = "auto", height: int = 760
) -> go.Figure:
    """Draw loss against step of both runs with the target, and how the second one's steps were found.

    All pairs are drawn in the first row; the target, the accepted steps and the condition are those of the first pair.

    Args:
        pairs: Pairs of runs, one per seed; the first is the one to look at.
        loss_name: What the evaluations measured.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = [dim_reduce_numbers(pair) for pair in pairs]
    numbers = [one for one in numbers if one.n_steps or one.x.size]
    if not numbers:
        return empty_figure(_QUESTION, "No run in a subspace has been recorded yet.", theme=theme)
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.52, 0.22, 0.26],
        vertical_spacing=0.05,
        figure=bare_figure(theme),
    )
    for index, one in reversed(list(enumerate(numbers))):  # the first one on top
        _add_losses(figure, one, is_first=index == 0)
    _add_search(figure, numbers[0])
    label = plain(numbers[0].label)
    figure.update_layout(
        height=height,
        showlegend=True,
        margin={"b": 96},
    )
    set_title(figure, _answer(numbers), _details(numbers))
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d", row=3, col=1)
    losses = np.concatenate([values for one in numbers for values in (one.loss, one.warm_up_loss)])
    figure.update_yaxes(title_text=f"{plain(loss_name)} (log)", **_log_axis(losses), row=1, col=1)
    figure.update_yaxes(title_text=f"Accepted rho<br>({label})", range=[-0.08, 1.08], row=2, col=1)
    figure.update_yaxes(title_text=f"Condition, log<br>({label})", **_log_axis(numbers[0].condition), row=3, col=1)
    return figure


def _log_axis(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return a log axis with a tick per decade, or at 1, 2 and 5 where there is less than a decade and a half."""
    good = values[np.isfinite(values) & (values > 0)]
    decades = float(np.log10(good.max() / good.min())) if good.size else 0.0
    return {"type": "log", "exponentformat": "power", "dtick": max(1, round(decades / 6)) if decades > 1.5 else "D2"}


def _answer(numbers: Sequence[DimReduceNumbers]) -> str:
    if not any(np.isfinite(one.target) for one in numbers):
        return "How does DimReduce find its steps?"
    there = [one for one in numbers if np.isfinite(one.reached)]
    sooner = [one for one in there if one.reached < one.warm_up_steps]
    if not there:
        return f"DimReduce did not reach the end loss of its warm-up in {counted(len(numbers), 'run')}"
    middle = float(np.median([one.reached for one in there]))
    return (
        f"DimReduce reaches the warm-up's end loss in fewer steps in {len(sooner)} of {counted(len(numbers), 'run')}, "
        f"after {middle:.0f} in the median"
    )


def _details(numbers: Sequence[DimReduceNumbers]) -> str:
    first = numbers[0]
    parts = [f"warm-up: {counted(int(first.warm_up_steps), 'step')}"] if np.isfinite(first.warm_up_steps) else []
    steps, failed = sum(one.n_steps for one in numbers), sum(one.n_failed for one in numbers)
    if steps:
        parts.append(f"{percent(failed / steps)} of the line searches failed")
    trials = [one.mean_trials for one in numbers if np.isfinite(one.mean_trials)]
    if trials:
        parts.append(f"{np.mean(trials):.1f} trials per step")
    shares = [one.explained_variance for one in numbers if np.isfinite(one.explained_variance)]
    if shares:
        parts.append(f"the components explain at least {percent(float(np.min(shares)))} of the snapshots' variance")
    return "; ".join(parts)


def _add_losses(figure: go.Figure, one: DimReduceNumbers, *, is_first: bool) -> None:
    label, faint = plain(one.label), 1.0 if is_first else 0.4
    for x, loss, name, colour, dash in (
        (one.warm_up_x, one.warm_up_loss, "SGD that made the snapshots", ORANGE, "dash"),
        (one.x, one.loss, "DimReduce", BLUE, "solid"),
    ):
        figure.add_scatter(
            x=x,
            y=loss,
            mode="lines",
            line={"color": translucent(colour, faint), "dash": dash, "width": 2.4 if is_first else 1.2},
            name=f"{name} (bold: {label})",
            showlegend=is_first,
            hovertemplate=f"{name}, {label}: %{{y:.4g}} after %{{x:,}} steps.<extra></extra>",
            row=1,
            col=1,
        )
    at = one.x == one.reached
    figure.add_scatter(
        x=one.x[at],
        y=one.loss[at],
        mode="markers",
        marker={"symbol": "star", "size": 14 if is_first else 9, "color": translucent(BLUE, faint)},
        name="the warm-up's end loss reached",
        showlegend=is_first,
        hovertemplate=f"{label}: the warm-up's end loss {one.target:.4g} is reached after %{{x:,}} steps; the warm-up "
        f"took {one.warm_up_steps:,.0f}.<extra></extra>",
        row=1,
        col=1,
    )
    if is_first and one.target > 0:
        figure.add_hline(y=one.target, line={"color": GREY, "dash": "dot", "width": 1.5}, row=1, col=1)
        figure.add_annotation(
            x=1,  # on the right the warm-up comes down to the line from above
            xref="x domain",
            y=np.log10(one.target),  # on a logarithmic axis shapes take values, annotations exponents
            text=f"end of the warm-up, {label}: {one.target:.3g}",
            showarrow=False,
            xanchor="right",
            yanchor="top",
            font={"size": 12},
            yref="y",
        )


def _add_search(figure: go.Figure, one: DimReduceNumbers) -> None:
    figure.add_scatter(
        x=one.rho_x,
        y=one.rho,
        mode="markers",
        marker={"size": 4, "color": BLUE},
        name="accepted rho",
        showlegend=False,
        hovertemplate="At step %{x:,} the share %{y:.3g} of the quasi-Newton step was taken.<extra></extra>",
        row=2,
        col=1,
    )
    figure.add_scatter(
        x=one.failed_x,
        y=np.zeros_like(one.failed_x),
        mode="markers",
        marker={"symbol": "x", "size": 8, "color": VERMILLION},
        name="line search failed",
        showlegend=bool(one.failed_x.size),
        hovertemplate="At step %{x:,} no trial lowered the loss enough.<extra></extra>",
        row=2,
        col=1,
    )
    figure.add_scatter(
        x=one.condition_x,
        y=one.condition,
        mode="lines",
        line={"color": BLUE, "width": 1.6},
        name="condition",
        showlegend=False,
        hovertemplate="At step %{x:,} the condition number was %{y:.3g}.<extra></extra>",
        row=3,
        col=1,
    )
