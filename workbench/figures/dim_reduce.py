"""DimReduce against the run that made its snapshots: who reaches which loss when, and how the steps were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.records import EventKind
from workbench.figures.drawing import OVERFLOW, Drawing, Mark, Stroke
from workbench.figures.frames import EventTable, StepTable, column, events_of, mean_known, steps_frame
from workbench.figures.labels import counted, percent, plain
from workbench.figures.theme import BLUE, GREY, ORANGE, Theme, translucent
from workbench.figures.thinning import MAXIMUM_POINTS, Floats, Line, thin_line, thin_marks

_QUESTION = "Does DimReduce reach the loss of its warm-up in fewer steps?"


@dataclass(frozen=True, eq=False)
class SubspacePair:
    """A run that recorded weight snapshots, and the run in the subspace that they span."""

    label: str  # for example "seed 3"
    warm_up: Sequence[tuple[int, float]]  # evaluations of the first run: (micro-batches done, loss)
    reduced: Sequence[tuple[int, float]]  # of the second run; empty draws the losses of its steps
    steps: StepTable  # of the second run, with the columns of DimReduce
    events: EventTable = None


@dataclass(frozen=True, eq=False)
class DimReduceNumbers:
    """Numbers behind one pair's curves; x counts micro-batches, and a single number is NaN where it is not known."""

    label: str
    warm_up: Line  # losses of the first run
    target: float  # loss of the first run at its end
    warm_up_steps: float  # micro-batches of the first run
    x: Floats
    loss: Floats  # of the second run
    reached: float  # micro-batches after which the second run first stood at or below the target
    rho: Line  # share of the quasi-Newton step that was taken; 0 where the search failed
    failed_x: Floats  # steps whose line search failed, thinned
    n_failed: int
    n_steps: int  # recorded of the second run
    condition: Line  # condition number of the inverse Hessian in the subspace
    explained_variance: float  # share of the snapshots' variance in the subspace
    mean_trials: float  # forward passes of the line search per step


def dim_reduce_numbers(pair: SubspacePair) -> DimReduceNumbers:
    """Reduce a pair of runs to the numbers of its curves."""
    frame = steps_frame(pair.steps)
    step, rho, condition = (column(frame, name) for name in ("step", "dim_reduce.rho", "dim_reduce.condition"))
    explained = column(frame, "dim_reduce.explained_variance")
    failed = np.unique(column(events_of(pair.events, EventKind.LINE_SEARCH_FAILED), "step"))
    first, second = np.array(pair.warm_up, np.float64).reshape(-1, 2), np.array(pair.reduced, np.float64).reshape(-1, 2)
    losses = Line(*second.T) if len(second) else thin_line(step, column(frame, "loss"), MAXIMUM_POINTS)
    warm_up_steps, target = first[-1].tolist() if len(first) else (float("nan"), float("nan"))
    shares = explained[np.isfinite(explained)]
    return DimReduceNumbers(
        label=pair.label,
        warm_up=Line(*first.T),
        target=target,
        warm_up_steps=warm_up_steps,
        x=losses.x,
        loss=losses.y,
        reached=next((float(step) for step, loss in pair.reduced if loss <= target), float("nan")),
        rho=thin_line(step, rho, MAXIMUM_POINTS),
        failed_x=failed[thin_marks(np.arange(failed.size), MAXIMUM_POINTS)],
        n_failed=int(failed.size),
        n_steps=len(frame),
        condition=thin_line(step, condition, MAXIMUM_POINTS),
        explained_variance=float(shares[0]) if shares.size else float("nan"),
        mean_trials=mean_known(column(frame, "dim_reduce.trials")),
    )


def dim_reduce_drawing(
    pairs: Sequence[SubspacePair], *, loss_name: str = "Loss", theme: Theme = "auto", height: int = 760
) -> Drawing:
    """Draw loss against step of both runs with the target, and how the second one's steps were found.

    All pairs, one per seed, are drawn in the first row; target, accepted steps and condition are those of the first
    pair. ``loss_name`` is what the evaluations measured.
    """
    numbers = [dim_reduce_numbers(pair) for pair in pairs]
    numbers = [one for one in numbers if one.n_steps or one.x.size]
    if not numbers:
        return Drawing.empty(_QUESTION, "No run in a subspace has been recorded yet.", theme=theme)
    rows = (0.52, 0.22, 0.26)
    drawing = Drawing(_answer(numbers), _details(numbers), theme=theme, height=height, rows=rows)
    for index, one in reversed(list(enumerate(numbers))):  # the first one on top
        _add_losses(drawing, one, is_first=index == 0)
    _add_search(drawing, numbers[0])
    label = plain(numbers[0].label)
    losses = np.concatenate([values for one in numbers for values in (one.loss, one.warm_up.y)])
    drawing.show_legend(96)
    drawing.set_steps()
    drawing.set_log_y(f"{plain(loss_name)} (log)", losses)
    drawing.set_y(f"Accepted rho<br>({label})", range=[-0.08, 1.08], row=2)
    drawing.set_log_y(f"Condition, log<br>({label})", numbers[0].condition.y, row=3)
    return drawing


def _answer(numbers: Sequence[DimReduceNumbers]) -> str:
    if not any(np.isfinite(one.target) for one in numbers):
        return "How does DimReduce find its steps?"
    there = [one for one in numbers if np.isfinite(one.reached)]
    sooner = [one for one in there if one.reached < one.warm_up_steps]
    if not there:
        return f"DimReduce did not reach the end loss of its warm-up in {counted(len(numbers), 'run')}"
    if len(numbers) == len(sooner) == 1:
        (only,) = sooner
        steps = f"{only.reached:.0f} steps to the end loss that the warm-up reached in {only.warm_up_steps:.0f}"
        return f"DimReduce needs {steps}"
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
        least = "at least " if len(shares) > 1 else ""
        parts.append(f"the components explain {least}{percent(float(np.min(shares)))} of the snapshots' variance")
    return "; ".join(parts)


def _add_losses(drawing: Drawing, one: DimReduceNumbers, *, is_first: bool) -> None:
    label, faint = plain(one.label), 1.0 if is_first else 0.4
    for losses, name, colour, dash in (
        (one.warm_up, "SGD that made the snapshots", ORANGE, "dash"),
        ((one.x, one.loss), "DimReduce", BLUE, "solid"),
    ):
        hover = f"{name}, {label}: %{{y:.4g}} after %{{x:,}} steps."
        stroke = Stroke(translucent(colour, faint), 2.4 if is_first else 1.2, dash)
        drawing.line(losses, stroke, hover, name=f"{name} (bold: {label})", showlegend=is_first)
    at = one.x == one.reached
    reached = one.x[at], one.loss[at]
    hover = (
        f"{label}: the warm-up's end loss {one.target:.4g} is reached after %{{x:,}} steps; the warm-up "
        f"took {one.warm_up_steps:,.0f}."
    )
    mark = Mark("star", 14 if is_first else 9, translucent(BLUE, faint))
    drawing.marks(reached, mark, hover, name="the warm-up's end loss reached", showlegend=is_first)
    if is_first and one.target > 0:
        drawing.rule(Stroke(GREY, 1.5, "dot"), y=one.target)
        # On the right the warm-up comes down to the line from above.
        height = np.log10(one.target)  # on a logarithmic axis shapes take values, annotations exponents
        text = f"end of the warm-up, {label}: {one.target:.3g}"
        drawing.note(text, x=1, xref="x domain", xanchor="right", y=height, yref="y", yanchor="top", font={"size": 12})


def _add_search(drawing: Drawing, one: DimReduceNumbers) -> None:
    hover = "At step %{x:,} the share %{y:.3g} of the quasi-Newton step was taken."
    drawing.marks(one.rho, Mark("circle", 4, BLUE), hover, name="accepted rho", showlegend=False, row=2)
    hover = "At step %{x:,} no trial lowered the loss enough."
    failed = one.failed_x, np.zeros_like(one.failed_x)
    drawing.marks(failed, OVERFLOW, hover, name="line search failed", showlegend=True, row=2)
    hover = "At step %{x:,} the condition number was %{y:.3g}."
    drawing.line(one.condition, Stroke(BLUE, 1.6), hover, name="condition", showlegend=False, row=3)
