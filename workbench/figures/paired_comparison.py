"""Configurations side by side: how fast each is against the first, and what it does to the metric seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.figures.drawing import Drawing, Mark, Stroke, interval
from workbench.figures.labels import MetricScale, counted, plain
from workbench.figures.theme import BLUE, GREEN, GREY, VERMILLION, Theme, translucent
from workbench.figures.thinning import Floats

_QUESTION = "Which configuration is faster, and what does it cost?"


@dataclass(frozen=True, slots=True)
class PairedSide:
    """What is known of one configuration."""

    label: str
    metrics: tuple[float, ...]  # final metric per seed in the task's unit; NaN where there is none (yet)
    speedup: float = math.nan  # per run, relative to the first side, larger is faster; NaN while it is not measured
    speedup_low: float = math.nan  # the ends of its 95 % interval, 0 and inf where nothing bounds it
    speedup_high: float = math.nan
    drop_bound: float = math.nan  # one-sided 95 % bound of the paired drop, positive is worse; NaN without


@dataclass(frozen=True, eq=False)
class PairedNumbers:
    """Numbers behind the figure; one entry per side after the first."""

    base: str  # label of the first side
    labels: tuple[str, ...]
    speeds: Floats  # relative to the base, with the ends of its interval ``[sides, 3]``; NaN where not measured
    changes: tuple[Floats, ...]  # metric less that of the base per common seed, in the shown unit
    bounds: Floats  # how far the change may go to the bad side, 95 % one-sided, in the shown unit; NaN without


def paired_comparison_numbers(sides: Sequence[PairedSide], metric: MetricScale) -> PairedNumbers:
    """Pair every side with the first one, the base."""
    base, others = sides[0], sides[1:]
    changes = []
    for side in others:
        pairs = zip(base.metrics, side.metrics, strict=False)  # a run that goes on has not all seeds
        found = [there - here for here, there in pairs if math.isfinite(here) and math.isfinite(there)]
        changes.append(metric.factor * np.array(found, dtype=np.float64))
    sign = -1.0 if metric.higher_is_better else 1.0
    return PairedNumbers(
        base=base.label,
        labels=tuple(side.label for side in others),
        speeds=np.array([(s.speedup, s.speedup_low, s.speedup_high) for s in others]).reshape(len(others), 3),
        changes=tuple(changes),
        bounds=np.array([sign * metric.factor * side.drop_bound for side in others]),
    )


def paired_comparison_drawing(
    sides: Sequence[PairedSide], *, metric: MetricScale, theme: Theme = "auto", height: int = 0
) -> Drawing:
    """Draw the speed of every side above, and its change of the metric below.

    Runs that are not done yet are NaN or left off the end; a height of 0 leaves every side a line of its own.
    """
    if not sides:
        return Drawing.empty(_QUESTION, "Nothing has been compared yet.", theme=theme, height=height or 220)
    numbers = paired_comparison_numbers(sides, metric)
    if not any(change.size for change in numbers.changes) and not np.isfinite(numbers.speeds).any():
        return Drawing.empty(_QUESTION, "No seed has been run on both sides yet.", theme=theme, height=height or 220)
    n, base = len(numbers.labels), plain(numbers.base)
    title, detail = _answer(numbers, metric), _detail(numbers, metric)
    drawing = Drawing(title, detail, theme=theme, height=height or 300 + 2 * 42 * n)
    rows = np.arange(n, dtype=np.float64)
    labels = {"tickvals": rows.tolist(), "ticktext": [plain(label) for label in numbers.labels]}
    sides_axis = {**labels, "range": [n - 0.5, -0.5], "showgrid": False}
    unit = "points" if metric.shown_unit == "%" else metric.shown_unit
    drawing.set_x(f"Speed per run relative to {base} (x)", row=1, anchor="y")
    drawing.set_x(f"Change of {plain(metric.name)} against {base}{unit and f' ({unit})'}", row=2, anchor="y2")
    drawing.set(yaxis={**sides_axis, "domain": [0.68, 1.0]})
    drawing.set(yaxis2={**sides_axis, "domain": [0.0, 0.31], "anchor": "x2"})
    _add_speeds(drawing, numbers, rows)
    _add_changes(drawing, numbers, rows, metric)
    drawing.rule(Stroke(GREY, 1, "dot"), x=1.0)
    drawing.rule(Stroke(GREY, 1, "dot"), x=0.0, row=2)
    drawing.show_legend()
    return drawing


def _add_speeds(drawing: Drawing, numbers: PairedNumbers, rows: Floats) -> None:
    known = np.flatnonzero(np.isfinite(numbers.speeds[:, 0]))
    if not known.size:  # an axis of its own even so: what comes later does not move what stands below
        drawing.marks(([None], [None]), Mark("circle", 9, GREY), showlegend=False)
        drawing.set(xaxis={"range": [0.9, 1.1]})
        return
    middle, low, high = numbers.speeds[known].T
    bounds = [f" ({a:.2f} to {b:.2f})" if math.isfinite(b) else "" for a, b in zip(low, high, strict=True)]
    most = 2.0 * max(float(middle.max()), 1.0)  # few seeds give an interval in which all else would be a dot
    high = np.minimum(high, most)
    drawing.marks(
        (middle, rows[known]),
        Mark("diamond", 12, GREEN),
        f"%{{customdata[0]}} is %{{x:.2f}} x as fast per run as {plain(numbers.base)}%{{customdata[1]}}.",
        text=[f"{value:.2f} x" for value in middle],
        textposition="top center",
        error_x=interval(middle, low, high, GREEN),
        cliponaxis=False,
        name="speed, 95 % interval",
        customdata=[[plain(numbers.labels[i]), text] for i, text in zip(known, bounds, strict=True)],
    )
    edge = max(float(np.abs(np.concatenate([low, high]) - 1.0).max()), 0.05)
    ends = [max(1 - 1.2 * edge, 0.0), min(1 + 1.2 * edge, most)]  # a longer bar ends at the frame
    drawing.set(xaxis={"range": ends})


def _add_changes(drawing: Drawing, numbers: PairedNumbers, rows: Floats, metric: MetricScale) -> None:
    n_pairs = [change.size for change in numbers.changes]
    known = [i for i, size in enumerate(n_pairs) if size]
    means = np.array([numbers.changes[i].mean() for i in known])
    bounds = numbers.bounds[known]

    def said(change: float) -> str:
        return metric.difference_text(change / metric.factor)

    by = [said(mean) for mean in means]
    worst = [f"; at worst by {said(bound)} (95 %)" if math.isfinite(bound) else "" for bound in bounds]
    drawing.marks(
        (means, rows[known]),
        Mark("diamond", 12, BLUE),
        f"%{{customdata[0]}} changes {plain(metric.name)} by %{{customdata[1]}} on average%{{customdata[2]}}.",
        # The bound is one-sided: the bar points the way that could still be worse.
        error_x=interval(means, np.minimum(means, bounds), np.maximum(means, bounds), translucent(VERMILLION, 0.9)),
        name="mean; the bar is the one-sided 95 % bound",
        customdata=[[plain(numbers.labels[i]), *texts] for i, *texts in zip(known, by, worst, strict=True)],
        row=2,
    )
    changes, hover = np.concatenate(numbers.changes), f"A seed changed {plain(metric.name)} by %{{customdata[0]}}."
    each = [[said(change)] for change in changes]
    seed = Mark("circle-open", 8, BLUE, edge=1.6)  # drawn over the mean, which would hide those near it
    drawing.marks((changes, np.repeat(rows, n_pairs)), seed, hover, name="one seed", customdata=each, row=2)


def _answer(numbers: PairedNumbers, metric: MetricScale) -> str:
    speeds = numbers.speeds[:, 0]
    if not np.isfinite(speeds).any():
        return _QUESTION
    best = int(np.nanargmax(speeds))
    change = numbers.changes[best]
    speed, low, high = numbers.speeds[best]
    is_clear = not low <= 1.0 <= high
    answer = f"Against {plain(numbers.base)}, {plain(numbers.labels[best])} is {speed:.2f} x as fast per run"
    answer += "" if is_clear else " (not clearly different)"
    if not change.size:
        return answer
    moved = metric.difference_text(abs(float(change.mean())) / metric.factor)
    if not change.mean():
        return f"{answer} at the same {plain(metric.name)}"
    return f"{answer}; {plain(metric.name)} {'up' if change.mean() > 0 else 'down'} by {moved}"


def _detail(numbers: PairedNumbers, metric: MetricScale) -> str:
    better = "right" if metric.higher_is_better else "left"
    n_pairs = max((change.size for change in numbers.changes), default=0)
    return f"top: right is faster; bottom: {better} is better; {counted(n_pairs, 'paired seed')}"
