"""Curves of all trials: how the metric of every trial grew, the finished and the given up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import BEYOND, outcome_of
from workbench.figures.drawing import Drawing, Stroke
from workbench.figures.labels import MetricScale, counted, plain
from workbench.figures.theme import BLUE, GREY, ORANGE, Theme, translucent

_QUESTION = "How did the metric of each trial grow?"
_TOO_FEW = (
    "A curve needs more than one evaluation, and fewer than two trials have that: "
    "a search of whole set-ups evaluates each trial at its end."
)
_MOST = 400  # curves; a reader tells no more apart
_KINDS: dict[str, tuple[Stroke, str]] = {
    "given up": (Stroke(translucent(GREY, 0.45), 1.2, "dot"), "pruned or failed"),
    "beyond": (Stroke(translucent(GREY, 0.6), 1.2), "beyond the allowed drop"),
    "within": (Stroke(translucent(BLUE, 0.6), 1.6), "within the allowed drop"),
    "baseline": (Stroke(ORANGE, 3), "O0, the baseline"),
}


@dataclass(frozen=True, slots=True)
class TrialCurve:
    """One trial's curve."""

    number: int
    kind: str  # key of the styles
    steps: tuple[int, ...]  # micro-batches
    metrics: tuple[float, ...]  # in the shown unit
    summary: str


def trial_curve_numbers(
    trials: Sequence[TrialRecord], metric: MetricScale, allowed_drops: Mapping[str, float] | None = None
) -> tuple[TrialCurve, ...]:
    """Return the curves of more than one evaluation, by number; of too many O0, then those with the lowest scores."""
    known = [one for one in trials if sum(math.isfinite(value) for _, value in one.curve) > 1]
    ranked = sorted(known, key=lambda one: (one.number > 0, one.value if math.isfinite(one.value) else math.inf))
    return tuple(
        TrialCurve(
            one.number,
            _kind(one, allowed_drops),
            tuple(step for step, value in one.curve if math.isfinite(value)),
            tuple(value * metric.factor for _, value in one.curve if math.isfinite(value)),
            one.summary or one.level,
        )
        for one in sorted(ranked[:_MOST], key=lambda one: one.number)
    )


def trial_curves_drawing(
    trials: Sequence[TrialRecord],
    *,
    metric: MetricScale,
    allowed_drops: Mapping[str, float] | None = None,
    theme: Theme = "auto",
    height: int = 460,
) -> Drawing:
    """Draw the metric of every trial against its micro-batches; ``customdata[0]`` of a point is the trial's number."""
    curves = trial_curve_numbers(trials, metric, allowed_drops)
    if len(curves) < 2:
        return Drawing.empty(_QUESTION, _TOO_FEW, theme=theme)
    drawing = Drawing(
        _QUESTION, f"{counted(len(curves), 'trial')}; point at a curve to see which", theme=theme, height=height
    )
    unit = f" {metric.shown_unit}" if metric.shown_unit else ""
    for kind, (stroke, name) in _KINDS.items():
        x: list[float | None] = []
        y: list[float | None] = []
        carried: list[list[object]] = []
        for curve in (one for one in curves if one.kind == kind):  # one trace a kind, with gaps: hundreds are slow
            x += [*curve.steps, None]
            y += [*curve.metrics, None]
            carried += [[curve.number, plain(curve.summary)]] * (len(curve.steps) + 1)
        hover = f"Trial %{{customdata[0]}} (%{{customdata[1]}}) had %{{y:.4g}}{unit} after %{{x:,}} batches."
        marker = {"size": 4, "color": stroke.colour}
        drawing.line((x, y), stroke, hover, mode="lines+markers", marker=marker, name=name, customdata=carried)
    drawing.set_steps()
    drawing.set_y(metric.title)
    drawing.show_legend()
    return drawing


def _kind(trial: TrialRecord, allowed_drops: Mapping[str, float] | None) -> str:
    if trial.number == 0:
        return "baseline"
    if trial.state != "complete":
        return "given up"
    return "beyond" if outcome_of(trial, allowed_drops) == BEYOND else "within"
