"""Speed against accuracy: every trial of a study, what O0 does, and what the confirmed candidates really keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from workbench.core.records import (
    CandidateRecord,
    Choice,
    TrialRecord,
    TunedPlain,
    Verdict,
)
from workbench.core.trial_counts import BEYOND, WITHIN, WITHIN_SOME, count_trials, outcome_of
from workbench.figures.labels import MetricScale, plain
from workbench.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Theme,
    empty_figure,
    new_figure,
    translucent,
)

__all__ = ["VERDICT_SYMBOLS", "CandidatePoint", "SpeedAccuracyNumbers", "TrialPoint", "speed_accuracy_figure",
           "speed_accuracy_numbers"]  # fmt: skip

VERDICT_SYMBOLS: dict[Verdict, str] = {Verdict.CONFIRMED: "✓", Verdict.UNDECIDED: "?", Verdict.REFUTED: "✗"}

_QUESTION = "How much faster can this task be trained, and what does that cost?"


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
    """One candidate: mean position, ends of both intervals, verdict; metrics in the shown unit."""

    label: str
    target: str
    trial_number: int
    verdict: Verdict
    speedup: float
    speedup_low: float
    speedup_high: float
    metric: float
    metric_bound: float
    text: str


@dataclass(frozen=True, slots=True)
class SpeedAccuracyNumbers:
    """Numbers behind the plane.

    Args:
        trials: Trials with both coordinates, O0 left out.
        candidates: Candidates with both coordinates.
        baseline: Metric of O0 in the shown unit; NaN when unknown.
        bounds: Target -> lowest (or highest) metric its allowed drop leaves, in the shown unit.
        left_out: How many trials came to what that have no measured speed or no metric; empty without any.
        front: Speed and metric of O0 and the finished trials that no other one beats in both, the slowest first.
    """

    trials: tuple[TrialPoint, ...]
    candidates: tuple[CandidatePoint, ...]
    baseline: float
    bounds: Mapping[str, float]
    left_out: str
    front: tuple[tuple[float, float], ...] = ()


def speed_accuracy_numbers(
    trials: Sequence[TrialRecord],
    candidates: Sequence[CandidateRecord] = (),
    *,
    metric: MetricScale,
    baseline_metric: float = float("nan"),
    allowed_drops: Mapping[str, float] | None = None,
) -> SpeedAccuracyNumbers:
    """Place trials and candidates in the plane of relative speed and metric.

    Speed is O0's time over the trial's, of what the study minimises, as in a candidate's record. A candidate's metric
    is O0's less its mean paired drop, so it can be compared with the lines directly.

    Args:
        trials: Trials of the study; trial 0 is O0.
        candidates: Candidates that went through confirmation.
        metric: Name, unit and direction of the metric.
        baseline_metric: Metric of O0 in the task's unit; NaN takes trial 0's.
        allowed_drops: Target (``"o1"``) -> allowed deficit in the task's unit.
    """
    baseline = baseline_metric
    if not math.isfinite(baseline):
        baseline = next((t.metric for t in trials if t.number == 0), float("nan"))
    sign = 1.0 if metric.higher_is_better else -1.0
    reference = next((t.value for t in trials if t.number == 0), float("nan"))
    points = [_trial_point(t, metric, reference, allowed_drops) for t in trials if t.number != 0]
    known = tuple(p for p in points if math.isfinite(p.speedup) and math.isfinite(p.metric))
    shown = {0, *(p.number for p in known)}
    placed = [_candidate_point(c, metric, baseline, sign) for c in candidates]
    drops = allowed_drops or {}
    return SpeedAccuracyNumbers(
        trials=known,
        candidates=tuple(p for p in placed if math.isfinite(p.speedup) and math.isfinite(p.metric)),
        baseline=baseline * metric.factor,
        bounds={target: (baseline - sign * drop) * metric.factor for target, drop in drops.items()},
        left_out=count_trials((t for t in trials if t.number not in shown), allowed_drops).plain_text(),
        front=_pareto_front(known, baseline * metric.factor, sign),
    )


def speed_accuracy_figure(
    trials: Sequence[TrialRecord],
    candidates: Sequence[CandidateRecord] = (),
    *,
    metric: MetricScale,
    baseline_metric: float = float("nan"),
    allowed_drops: Mapping[str, float] | None = None,
    choices: Sequence[Choice] = (),
    per: str = "",
    tuned_plain: Mapping[str, tuple[TunedPlain, float]] | None = None,
    theme: Theme = "auto",
    height: int = 480,
) -> go.Figure:
    """Draw every trial in the plane of relative speed and metric; arguments as ``speed_accuracy_numbers``.

    ``customdata[0]`` of a trial, of O0 and of a candidate is the trial's number. ``choices`` says what the exports
    take: the title names it and its point is marked. Without it the title is the question. ``per`` says what the speed
    is of, ``"per step"`` or ``"to the same quality"``; ``tuned_plain`` is each export's fair baseline with its speed.
    """
    numbers = speed_accuracy_numbers(
        trials, candidates, metric=metric, baseline_metric=baseline_metric, allowed_drops=allowed_drops
    )
    if not numbers.trials and not numbers.candidates:
        nothing = "No trial has both a measured speed and a metric."
        if math.isfinite(numbers.baseline):
            nothing = "Only O0 has both a measured speed and a metric."
        return empty_figure(_answer(choices), nothing, theme=theme)
    figure = new_figure(_answer(choices), _detail(numbers, metric), theme=theme, height=height)
    low, high = _metric_range(numbers)
    _add_front(figure, numbers, low, high)
    for beginning, style in _TRIAL_STYLES.items():
        chosen = [p for p in numbers.trials if p.kind.startswith(beginning)]
        if chosen:
            figure.add_scatter(
                x=[p.speedup for p in chosen],
                # Trials that were given up early lie far away; the eye belongs where the decision is made, so they
                # stand on the edge and their hover text keeps the true number.
                y=[min(max(p.metric, low), high) for p in chosen],
                mode="markers",
                marker=style,
                cliponaxis=False,
                name=" / ".join(dict.fromkeys(p.kind for p in chosen)),
                customdata=[[p.number, p.text] for p in chosen],
                hovertemplate="%{customdata[1]}<extra></extra>",
            )
    if math.isfinite(numbers.baseline):
        figure.add_scatter(
            x=[1.0],
            y=[numbers.baseline],
            mode="markers+text",
            text=["O0"],
            textposition="bottom center",
            marker={"symbol": "star", "size": 16, "color": ORANGE},
            name="O0",
            customdata=[[0]],
            hovertemplate="O0, the baseline everything is compared with.<extra></extra>",
        )
    _add_tuned_plain(figure, numbers, metric, tuned_plain or {})
    _add_candidates(figure, numbers, {(choice.target, plain(choice.label)) for choice in choices})
    _add_bounds(figure, numbers)
    figure.update_xaxes(title_text=f"Speed: time of O0 / time{f' {per}' if per else ''} (×)", ticksuffix=" ×")
    figure.update_yaxes(title_text=metric.title, range=[low, high])
    # Columns wide enough for the longest name: of their own accord all are as wide, and stand below each other.
    legend = {"entrywidth": _LEGEND_WIDTH, "entrywidthmode": "pixels"}
    figure.update_layout(showlegend=True, margin={"b": 108}, legend=legend)
    return figure


_LEGEND_WIDTH = 190  # pixels


_TRIAL_STYLES: dict[str, dict[str, Any]] = {
    WITHIN: {"symbol": "circle", "size": 9, "color": BLUE, "opacity": 0.8},
    WITHIN_SOME: {"symbol": "circle-dot", "size": 9, "color": SKY, "line": {"width": 1.4, "color": BLUE}},
    BEYOND: {"symbol": "circle-open", "size": 9, "color": GREY, "line": {"width": 1.8}},
    "pruned or failed": {"symbol": "x-thin-open", "size": 8, "color": GREY, "line": {"width": 1.6}},
}

_CANDIDATE_STYLES: dict[Verdict, tuple[str, str]] = {
    Verdict.CONFIRMED: ("diamond", GREEN),
    Verdict.UNDECIDED: ("diamond-open", PURPLE),
    Verdict.REFUTED: ("cross", VERMILLION),
}


def _trial_point(
    trial: TrialRecord, metric: MetricScale, reference: float, allowed_drops: Mapping[str, float] | None
) -> TrialPoint:
    # Without a guard a time of 0, which only a broken clock gives, would stop the report from opening.
    speedup = 1.0 / trial.relative_step_time if trial.relative_step_time > 0 else float("nan")
    if trial.state == "complete" and math.isfinite(reference) and trial.value > 0:
        speedup = reference / trial.value  # a pruned trial has no value; how fast its steps are is all that is known
    kind = outcome_of(trial, allowed_drops) if trial.state == "complete" else "pruned or failed"
    text = (
        f"Trial {trial.number} ({plain(trial.summary or trial.level)}) ran {speedup:.2f} × as fast as O0 "
        f"and reached {metric.value_text(trial.metric)}: {kind}."
    )
    return TrialPoint(trial.number, kind, speedup, trial.metric * metric.factor, text)


def _candidate_point(c: CandidateRecord, metric: MetricScale, baseline: float, sign: float) -> CandidatePoint:
    text = (
        f"{plain(c.label)} ({plain(c.summary)}) is {c.speedup:.2f} × as fast as O0 "
        f"({c.speedup_low:.2f} to {c.speedup_high:.2f}).<br>Drop {metric.difference_text(c.drop)}, "
        f"at most {metric.difference_text(c.drop_bound)}; "
        f"allowed {metric.difference_text(c.allowed_drop)}: {c.verdict}."
    )
    return CandidatePoint(
        label=plain(c.label),
        target=c.target,
        trial_number=c.trial_number,
        verdict=c.verdict,
        speedup=c.speedup,
        speedup_low=c.speedup_low,
        speedup_high=c.speedup_high,
        metric=(baseline - sign * c.drop) * metric.factor,
        metric_bound=(baseline - sign * c.drop_bound) * metric.factor,
        text=text,
    )


def _answer(choices: Sequence[Choice]) -> str:
    """Say what each export takes; nothing else here names a winner."""
    if not choices:
        return _QUESTION
    taken = {
        choice.target: f"{choice.candidate.label}, {choice.candidate.speedup:.2f} × O0 ({choice.verdict})"
        for choice in choices
        if choice.candidate is not None
    }
    if len(set(taken.values())) == 1 and len(taken) == len(choices):
        return f"Exported: {next(iter(taken.values()))}"
    told = [f"{choice.target} {taken.get(choice.target, 'O0')}" for choice in choices]
    return f"Exported: {'; '.join(told)}"


def _detail(numbers: SpeedAccuracyNumbers, metric: MetricScale) -> str:
    better = "up" if metric.higher_is_better else "down"
    text = f"right is faster, {better} is better; bars are 95 % intervals"
    return text + (f"; not shown: {numbers.left_out}" if numbers.left_out else "")


def _pareto_front(trials: Sequence[TrialPoint], baseline: float, sign: float) -> tuple[tuple[float, float], ...]:
    """Return the points no other one equals or beats in both; one run per trial, so chance has its part in it."""
    points = {(t.speedup, t.metric) for t in trials if t.kind != "pruned or failed"}
    if math.isfinite(baseline):
        points.add((1.0, baseline))
    front: list[tuple[float, float]] = []
    for speedup, value in sorted(points, key=lambda p: (-p[0], -sign * p[1])):  # from the fastest on
        if not front or sign * value > sign * front[-1][1]:
            front.append((speedup, value))
    return tuple(reversed(front))


def _add_front(figure: go.Figure, numbers: SpeedAccuracyNumbers, low: float, high: float) -> None:
    if len(numbers.front) < 2:
        return
    figure.add_scatter(
        x=[speedup for speedup, _ in numbers.front],
        y=[min(max(value, low), high) for _, value in numbers.front],
        mode="lines",
        # Down first, then on: whatever lies below and left of this staircase is beaten by one of its corners.
        line={"shape": "vh", "width": 1.6, "color": translucent(SKY, 0.8)},
        name="Pareto front",
        legendrank=1001,  # drawn beneath the points, named after them
        hoverinfo="skip",
    )


def _add_tuned_plain(
    figure: go.Figure,
    numbers: SpeedAccuracyNumbers,
    metric: MetricScale,
    tuned_plain: Mapping[str, tuple[TunedPlain, float]],
) -> None:
    sign = metric.factor if metric.higher_is_better else -metric.factor
    points = {(speed, numbers.baseline - sign * tuned.drop): tuned for tuned, speed in tuned_plain.values()}
    shown = {point: tuned for point, tuned in points.items() if all(map(math.isfinite, point))}
    if not shown:
        return
    figure.add_scatter(
        x=[speed for speed, _ in shown],
        y=[value for _, value in shown],
        mode="markers+text",
        text=["tuned plain"] * len(shown),
        textposition="bottom center",
        cliponaxis=False,
        marker={"symbol": "star-diamond", "size": 14, "color": ORANGE},
        name="tuned plain",
        customdata=[[-1, plain(tuned.summary), metric.difference_text(tuned.drop)] for tuned in shown.values()],
        hovertemplate="Tuned plain (%{customdata[1]}) is %{x:.2f} × as fast as O0 and drops %{customdata[2]}."
        "<extra></extra>",
    )


def _add_candidates(figure: go.Figure, numbers: SpeedAccuracyNumbers, exported: Set[tuple[str, str]]) -> None:
    for verdict, (symbol, colour) in _CANDIDATE_STYLES.items():
        chosen = [c for c in numbers.candidates if c.verdict is verdict]
        if not chosen:
            continue
        figure.add_scatter(
            x=[c.speedup for c in chosen],
            y=[c.metric for c in chosen],
            mode="markers+text",
            text=[_mark(c, exported) for c in chosen],
            # One trial may be exported for both, at nearly the same point: two labels there.
            textposition=["bottom center" if c.target == "o2" else "top center" for c in chosen],
            cliponaxis=False,
            marker={"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2, "color": colour}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [c.speedup_high - c.speedup for c in chosen],
                "arrayminus": [c.speedup - c.speedup_low for c in chosen],
                "color": colour,
                "thickness": 1.6,
            },
            # The bound on the drop is one-sided: the bar points the way that could still be worse.
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, c.metric_bound - c.metric) for c in chosen],
                "arrayminus": [max(0.0, c.metric - c.metric_bound) for c in chosen],
                "color": colour,
                "thickness": 1.6,
            },
            name=f"{verdict} {VERDICT_SYMBOLS[verdict]}",
            customdata=[[c.trial_number, c.text] for c in chosen],
            hovertemplate="%{customdata[1]}<extra></extra>",
        )


def _mark(candidate: CandidatePoint, exported: Set[tuple[str, str]]) -> str:
    """Return what stands at a candidate's point: once something is exported, only that is named."""
    name = f"{candidate.label} {VERDICT_SYMBOLS[candidate.verdict]}"
    if (candidate.target, candidate.label) in exported:
        return f"{candidate.target}: {name}"
    return "" if exported else name


def _add_bounds(figure: go.Figure, numbers: SpeedAccuracyNumbers) -> None:
    if math.isfinite(numbers.baseline):
        figure.add_vline(x=1.0, line={"width": 1, "dash": "dot", "color": GREY})
    dashes = ("dash", "longdashdot", "dot")
    for index, (target, value) in enumerate(numbers.bounds.items()):
        if math.isfinite(value):
            figure.add_hline(
                y=value,
                line={"width": 1.4, "dash": dashes[index % 3], "color": GREY},
                annotation={
                    "text": f"allowed for {plain(target)}",
                    "font": {"size": 12, "color": GREY},
                    "xanchor": "right",
                    "yanchor": "bottom",
                },
                annotation_position="top right",
            )


def _metric_range(numbers: SpeedAccuracyNumbers) -> tuple[float, float]:
    """Return the y range that shows every finished trial, every candidate with its bound, and every line."""
    values = [t.metric for t in numbers.trials if t.kind != "pruned or failed"] or [t.metric for t in numbers.trials]
    values += [v for c in numbers.candidates for v in (c.metric, c.metric_bound)]
    values += [*numbers.bounds.values(), numbers.baseline]
    finite = [v for v in values if math.isfinite(v)]
    margin = 0.16 * (max(finite) - min(finite)) or max(abs(finite[0]) * 0.01, 1e-6)
    return min(finite) - margin, max(finite) + margin
