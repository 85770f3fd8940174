"""Speed against accuracy: every trial of a study, what O0 does, and what the confirmed candidates really keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from workbench.core.records import CandidateRecord, Choice, TrialRecord, TunedPlain, Verdict
from workbench.core.trial_counts import BEYOND, UNSURE, WITHIN, WITHIN_SOME, count_trials, outcome_of
from workbench.figures.drawing import Drawing, Mark, Stroke, interval
from workbench.figures.labels import MetricScale, plain
from workbench.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Theme, translucent

VERDICT_SYMBOLS: dict[Verdict, str] = {Verdict.CONFIRMED: "✓", Verdict.UNDECIDED: "?", Verdict.REFUTED: "✗"}

_QUESTION = "How much faster can this task be trained, and what does that cost?"
_GIVEN_UP = "pruned or failed"
FAR_BEYOND = "far beyond, off this axis"
_LEGEND_WIDTH = 190  # pixels of a column, for the longest name: by default all are as wide, and stand below each other
_FAR = 3  # times the range that the decision is made in
_TRIAL_MARKS = {
    WITHIN: Mark("circle", 9, translucent(BLUE, 0.8)),
    WITHIN_SOME: Mark("circle-dot", 9, SKY, edge=1.4),
    UNSURE: Mark("circle-open-dot", 9, GREY, edge=1.6),
    BEYOND: Mark("circle-open", 9, GREY, edge=1.8),
    _GIVEN_UP: Mark("x-thin-open", 8, GREY, edge=1.6),
}
# In the order they are drawn: a trial refuted for one export and confirmed for another is seen as confirmed.
_CANDIDATE_MARKS = {
    Verdict.REFUTED: Mark("cross", 13, VERMILLION, edge=2),
    Verdict.UNDECIDED: Mark("diamond-open", 13, PURPLE, edge=2),
    Verdict.CONFIRMED: Mark("diamond", 13, GREEN, edge=2),
}


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """One trial in the plane: relative speed (1 = O0, larger is faster) and shown metric."""

    number: int
    kind: str  # as `outcome_of` says it, or "pruned or failed"
    speedup: float
    metric: float
    text: str


@dataclass(frozen=True, slots=True)
class CandidatePoint:
    """One candidate, with its mean metric and the bound of that in the shown unit."""

    record: CandidateRecord
    metric: float
    metric_bound: float
    text: str


@dataclass(frozen=True, slots=True)
class SpeedAccuracyNumbers:
    """Numbers behind the plane; metrics in the shown unit."""

    trials: tuple[TrialPoint, ...]  # with both coordinates, O0 left out
    candidates: tuple[CandidatePoint, ...]  # with both coordinates
    baseline: float  # metric of O0; NaN when unknown
    bounds: Mapping[str, float]  # target -> lowest (or highest) metric its allowed drop leaves
    left_out: str  # what trials without a measured speed or a metric came to; empty without any
    # Speed and metric of O0 and the finished trials that no other one beats in both, the slowest first.
    front: tuple[tuple[float, float], ...] = ()


def speed_accuracy_numbers(
    trials: Sequence[TrialRecord],
    candidates: Sequence[CandidateRecord] = (),
    *,
    metric: MetricScale,
    allowed_drops: Mapping[str, float] | None = None,
) -> SpeedAccuracyNumbers:
    """Place trials and candidates in the plane; arguments as for ``speed_accuracy_figure``.

    Speed is O0's time over the trial's, of what the study minimises, as in a candidate's record. A candidate's metric
    is O0's less its mean paired drop, so it can be compared with the lines directly.
    """
    first = next((t for t in trials if t.number == 0), None)
    baseline, reference = (math.nan, math.nan) if first is None else (first.metric, first.value)
    sign = 1.0 if metric.higher_is_better else -1.0
    points = [_trial_point(t, metric, reference, allowed_drops) for t in trials if t.number != 0]
    known = tuple(p for p in points if math.isfinite(p.speedup) and math.isfinite(p.metric))
    shown = {0, *(p.number for p in known)}
    placed = [_candidate_point(c, metric, baseline, sign) for c in candidates]
    drops = allowed_drops or {}
    return SpeedAccuracyNumbers(
        trials=known,
        candidates=tuple(p for p in placed if math.isfinite(p.record.speedup) and math.isfinite(p.metric)),
        baseline=baseline * metric.factor,
        bounds={target: (baseline - sign * drop) * metric.factor for target, drop in drops.items()},
        left_out=count_trials((t for t in trials if t.number not in shown), allowed_drops).plain_text(),
        front=_pareto_front(known, baseline * metric.factor, sign),
    )


def speed_accuracy_drawing(
    trials: Sequence[TrialRecord],
    candidates: Sequence[CandidateRecord] = (),
    *,
    metric: MetricScale,
    allowed_drops: Mapping[str, float] | None = None,
    choices: Sequence[Choice] = (),
    per: str = "",
    tuned_plain: Mapping[str, tuple[TunedPlain, float]] | None = None,
    theme: Theme = "auto",
    height: int = 480,
) -> Drawing:
    """Draw every trial in the plane of relative speed and metric; trial 0 is O0.

    ``candidates`` are those that went through confirmation, and ``allowed_drops`` say by target (``"o1"``) what
    deficit is allowed in the task's unit. ``choices`` are what the exports take: the title names it and its point is
    marked; without it the title asks. ``per`` is what the speed is of, ``"per step"`` or ``"per run"``;
    ``tuned_plain`` is each export's fair baseline with its speed.
    ``customdata[0]`` of a trial, of O0 and of a candidate is the trial's number.
    """
    numbers = speed_accuracy_numbers(trials, candidates, metric=metric, allowed_drops=allowed_drops)
    if not numbers.trials and not numbers.candidates:
        who = "So far only O0" if math.isfinite(numbers.baseline) else "No trial"
        return Drawing.empty(_answer(choices), f"{who} has both a measured speed and a metric.", theme=theme)
    drawing = Drawing(_answer(choices), _detail(numbers, metric), theme=theme, height=height)
    low, high = _metric_range(numbers)
    slow, fast = _speed_range(numbers, low, high, [speed for _, speed in (tuned_plain or {}).values()])
    downward = "triangle-down-open" if metric.higher_is_better else "triangle-up-open"
    _add_trials(drawing, numbers, (slow, fast), (low, high), downward)
    if math.isfinite(numbers.baseline):
        hover, mark = "O0, the baseline everything is compared with.", Mark("star", 16, ORANGE)
        # Off the upright line and that of the allowed drop; tuned plain, named on the other side, may stand at the same
        # point. On a narrow page the name reaches over the axis.
        side = "top left" if metric.higher_is_better else "bottom left"
        place = {"text": ["O0"], "textposition": side, "cliponaxis": False}
        drawing.marks(([1.0], [numbers.baseline]), mark, hover, **place, name="O0", customdata=[[0]])
        drawing.rule(Stroke(GREY, 1, "dot"), x=1.0)
    _add_tuned_plain(drawing, numbers, metric, tuned_plain or {})
    _add_candidates(drawing, numbers, {(choice.target, choice.label) for choice in choices})
    _add_bounds(drawing, numbers)
    drawing.set_x(f"Speed: time of O0 / time{f' {per}' if per else ''} (x)", ticksuffix=" x", range=[slow, fast])
    drawing.set_y(metric.title, range=[low, high])
    drawing.set(legend={"entrywidth": _LEGEND_WIDTH, "entrywidthmode": "pixels"})
    drawing.show_legend(108)
    return drawing


def _trial_point(
    trial: TrialRecord, metric: MetricScale, reference: float, allowed_drops: Mapping[str, float] | None
) -> TrialPoint:
    speedup = trial.speed[0]
    if trial.state == "complete" and math.isfinite(reference) and trial.value > 0:
        speedup = reference / trial.value  # a pruned trial has no value; how fast its steps are is all that is known
    kind = outcome_of(trial, allowed_drops) if trial.state == "complete" else _GIVEN_UP
    text = (
        f"Trial {trial.number} ({plain(trial.summary or trial.level)}) ran {speedup:.2f} x as fast as O0 "
        f"and reached {metric.value_text(trial.metric)}: {kind}."
    )
    return TrialPoint(trial.number, kind, speedup, trial.metric * metric.factor, text)


def _candidate_point(c: CandidateRecord, metric: MetricScale, baseline: float, sign: float) -> CandidatePoint:
    text = (
        f"{plain(c.label)} ({plain(c.summary)}) is {c.speedup:.2f} x as fast as O0 "
        f"({c.speedup_low:.2f} to {c.speedup_high:.2f}).<br>The {plain(metric.name)} is {metric.change_text(c.drop)} "
        f"(95 % bound {metric.change_text(c.drop_bound)}; {metric.difference_text(c.allowed_drop)} allowed): "
        f"{c.verdict}."
    )
    mean, bound = ((baseline - sign * drop) * metric.factor for drop in (c.drop, c.drop_bound))
    return CandidatePoint(c, mean, bound, text)


def _answer(choices: Sequence[Choice]) -> str:
    """Say what each export takes; nothing else here names a winner."""
    if not choices:
        return _QUESTION
    taken = {
        choice.target: f"{choice.candidate.label}, {choice.candidate.speedup:.2f} x O0 ({choice.verdict})"
        for choice in choices
        if choice.candidate is not None
    }
    if not taken:
        return "Exported: O0, as nothing is surely faster and as good"
    if len(set(taken.values())) == 1 and len(taken) == len(choices):
        return f"Exported: {next(iter(taken.values()))}"
    exports = [f"{choice.target} {taken.get(choice.target, 'O0')}" for choice in choices]
    return f"Exported: {'; '.join(exports)}"


def _detail(numbers: SpeedAccuracyNumbers, metric: MetricScale) -> str:
    better = "up" if metric.higher_is_better else "down"
    text = f"right is faster, {better} is better; bars are 95 % intervals"
    return text + (f"; not shown: {numbers.left_out}" if numbers.left_out else "")


def _pareto_front(trials: Sequence[TrialPoint], baseline: float, sign: float) -> tuple[tuple[float, float], ...]:
    """Return the points no other one equals or beats in both; one run per trial, so chance has its part in it."""
    points = {(t.speedup, t.metric) for t in trials if t.kind != _GIVEN_UP}
    if math.isfinite(baseline):
        points.add((1.0, baseline))
    front: list[tuple[float, float]] = []
    for speedup, value in sorted(points, key=lambda p: (-p[0], -sign * p[1])):  # from the fastest on
        if not front or sign * value > sign * front[-1][1]:
            front.append((speedup, value))
    return tuple(reversed(front))


def _add_trials(
    drawing: Drawing,
    numbers: SpeedAccuracyNumbers,
    speeds: tuple[float, float],
    metrics: tuple[float, float],
    downward: str,
) -> None:
    """Add the Pareto front and the trials, within ranges of both axes.

    What was given up early or lost much lies far away; the eye belongs where the decision is made, so it stands on the
    edge, where ``downward`` points on, and its hover text keeps the true numbers.
    """
    low, high = metrics
    front = [(speedup, value) for speedup, value in numbers.front if low <= value <= high]
    if len(front) > 1:
        x, y = zip(*front, strict=True)
        # Down first, then on: whatever lies below and left of this staircase is beaten by one of its corners.
        stroke = Stroke(translucent(SKY, 0.8), 1.6, shape="vh")
        drawing.line((x, y), stroke, name="Pareto front", legendrank=1001)  # drawn beneath the points, named after them
    kinds = [FAR_BEYOND if p.kind == BEYOND and not low <= p.metric <= high else p.kind for p in numbers.trials]
    for beginning, mark in {**_TRIAL_MARKS, FAR_BEYOND: Mark(downward, 10, GREY, edge=1.6)}.items():
        chosen = [p for p, kind in zip(numbers.trials, kinds, strict=True) if kind.startswith(beginning)]
        drawing.marks(
            ([_within(p.speedup, speeds) for p in chosen], [_within(p.metric, metrics) for p in chosen]),
            mark,
            "%{customdata[1]}",
            cliponaxis=False,
            name=" / ".join(dict.fromkeys(kind for kind in kinds if kind.startswith(beginning))),
            customdata=[[p.number, p.text] for p in chosen],
        )


def _add_tuned_plain(
    drawing: Drawing,
    numbers: SpeedAccuracyNumbers,
    metric: MetricScale,
    tuned_plain: Mapping[str, tuple[TunedPlain, float]],
) -> None:
    sign = metric.factor if metric.higher_is_better else -metric.factor
    points = {(speed, numbers.baseline - sign * tuned.drop): tuned for tuned, speed in tuned_plain.values()}
    shown = {point: tuned for point, tuned in points.items() if all(map(math.isfinite, point))}
    drawing.marks(
        ([speed for speed, _ in shown], [value for _, value in shown]),
        Mark("star-diamond", 14, ORANGE),
        "Tuned plain (%{customdata[1]}) is %{x:.2f} x as fast as O0 and %{customdata[2]}.",
        text=["tuned plain"] * len(shown),
        textposition="bottom right",
        cliponaxis=False,
        name="tuned plain",
        customdata=[[-1, plain(tuned.summary), metric.change_text(tuned.drop)] for tuned in shown.values()],
    )


def _add_candidates(drawing: Drawing, numbers: SpeedAccuracyNumbers, exported: Set[tuple[str, str]]) -> None:
    for verdict, mark in _CANDIDATE_MARKS.items():
        chosen = [point for point in numbers.candidates if point.record.verdict is verdict]
        records = [point.record for point in chosen]
        speeds, metrics = [c.speedup for c in records], [p.metric for p in chosen]
        slowest, fastest = [c.speedup_low for c in records], [c.speedup_high for c in records]
        # The bound on the drop is one-sided: the bar points the way that could still be worse.
        bounds = np.array([p.metric_bound for p in chosen])
        lowest, highest = np.minimum(metrics, bounds), np.maximum(metrics, bounds)
        drawing.marks(
            (speeds, metrics),
            mark,
            "%{customdata[1]}",
            text=[_label(c, exported) for c in records],
            # One trial may be exported for both, at nearly the same point: two labels there, off the bars.
            textposition=["bottom left" if c.target == "o2" else "top left" for c in records],
            cliponaxis=False,
            error_x=interval(speeds, slowest, fastest, mark.colour, thickness=1.6),
            error_y=interval(metrics, lowest, highest, mark.colour, thickness=1.6),
            name=f"{verdict} {VERDICT_SYMBOLS[verdict]}",
            customdata=[[p.record.trial_number, p.text] for p in chosen],
        )


def _label(candidate: CandidateRecord, exported: Set[tuple[str, str]]) -> str:
    """Return what stands at a candidate's point: once something is exported, only that is named."""
    name = f"{plain(candidate.label)} {VERDICT_SYMBOLS[candidate.verdict]}"
    if (candidate.target, candidate.label) in exported:
        return f"{candidate.target}: {name}"
    return "" if exported else name


def _add_bounds(drawing: Drawing, numbers: SpeedAccuracyNumbers) -> None:
    dashes = ("dash", "longdashdot", "dot")
    place = {"x": 1, "xref": "x domain", "xanchor": "right", "yanchor": "bottom"}
    for index, (target, value) in enumerate(numbers.bounds.items()):
        if math.isfinite(value):
            drawing.rule(Stroke(GREY, 1.4, dashes[index % 3]), y=value)
            drawing.note(f"allowed for {plain(target)}", y=value, yref="y", **place, font={"size": 12, "color": GREY})


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _speed_range(
    numbers: SpeedAccuracyNumbers, low: float, high: float, tuned_plain: Sequence[float]
) -> tuple[float, float]:
    """Return the x range of what stands between two metrics: what lost much is often faster than anything of use."""
    near = [t.speedup for t in numbers.trials if low <= t.metric <= high and t.kind != _GIVEN_UP]
    near = near or [t.speedup for t in numbers.trials]
    records = [c.record for c in numbers.candidates]
    near += [speed for c in records for speed in (c.speedup, c.speedup_low, c.speedup_high)]
    finite = [speed for speed in (1.0, *near, *tuned_plain) if math.isfinite(speed)]
    margin = 0.08 * (max(finite) - min(finite)) or 0.1
    return min(finite) - margin, max(finite) + margin


def _metric_range(numbers: SpeedAccuracyNumbers) -> tuple[float, float]:
    """Return the y range of trials within the drop, candidates and their bounds, lines, and what is near these."""
    values = [t.metric for t in numbers.trials if t.kind not in (_GIVEN_UP, BEYOND)]
    values += [v for c in numbers.candidates for v in (c.metric, c.metric_bound)]
    values += [*numbers.bounds.values(), numbers.baseline]
    finite = [v for v in values if math.isfinite(v)]
    beyond = [t.metric for t in numbers.trials if t.kind == BEYOND]
    if len(set(finite)) > 1:
        reach = _FAR * (max(finite) - min(finite))
        beyond = [v for v in beyond if min(finite) - reach <= v <= max(finite) + reach]
    finite = [*finite, *beyond] or [t.metric for t in numbers.trials]
    margin = 0.16 * (max(finite) - min(finite)) or max(abs(finite[0]) * 0.01, 1e-6)
    return min(finite) - margin, max(finite) + margin
