"""Study history: what each trial scored, and the best one so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import BEYOND, UNSURE, WITHIN, TrialCounts, count_trials, outcome_of
from workbench.figures.drawing import Drawing, Mark, Stroke, whole_ticks
from workbench.figures.labels import plain
from workbench.figures.theme import BLUE, GREEN, GREY, ORANGE, Theme

_QUESTION = "Was the search still finding better set-ups?"
_KINDS = {"pruned": "pruned", "O0": "baseline", WITHIN: "feasible", UNSURE: "unsure", BEYOND: "infeasible"}
_STYLES: dict[str, tuple[Mark, str]] = {
    "baseline": (Mark("star", 14, ORANGE), "O0, the baseline"),
    "feasible": (Mark("circle", 9, BLUE), WITHIN),
    "partly": (Mark("circle-open", 9, BLUE), "within the drop of one export only"),
    "unsure": (Mark("circle-open-dot", 9, GREY), UNSURE),
    "infeasible": (Mark("circle-open", 9, GREY), BEYOND),
    "pruned": (Mark("x-thin-open", 9, GREY), "pruned"),
    "beyond": (Mark("triangle-up-open", 10, GREY), "beyond this axis"),
}


@dataclass(frozen=True, slots=True)
class StudyHistoryNumbers:
    """Numbers behind the history, one entry per trial with a finite value."""

    numbers: tuple[int, ...]  # rising
    values: tuple[float, ...]  # smaller is better
    kinds: tuple[str, ...]  # keys of the styles; "partly" suits some exports
    summaries: tuple[str, ...]  # what is in effect
    best: tuple[float, ...]  # best objective among baseline and feasible trials up to each; NaN before the first
    ceiling: float  # largest value drawn to scale
    counts: TrialCounts  # of all trials, those without a value among them


def study_history_numbers(
    trials: Sequence[TrialRecord], allowed_drops: Mapping[str, float] | None = None
) -> StudyHistoryNumbers:
    """Reduce trials to objective and best so far; arguments as for ``study_history_figure``."""
    known = [t for t in trials if math.isfinite(t.value) and t.state in {"complete", "pruned"}]
    known.sort(key=lambda trial: trial.number)
    best, lowest = [], math.nan
    for trial in known:
        if trial.state == "complete" and (trial.feasible or trial.number == 0):
            lowest = min(trial.value, lowest)  # in this order NaN yields
        best.append(lowest)
    return StudyHistoryNumbers(
        numbers=tuple(t.number for t in known),
        values=tuple(t.value for t in known),
        kinds=tuple(_KINDS.get(outcome_of(t, allowed_drops), "partly") for t in known),
        summaries=tuple(t.summary or t.level for t in known),
        best=tuple(best),
        ceiling=value_ceiling(known),
        counts=count_trials(trials, allowed_drops),
    )


def study_history_drawing(
    trials: Sequence[TrialRecord],
    *,
    objective: str = "Objective, smaller is better",
    allowed_drops: Mapping[str, float] | None = None,
    theme: Theme = "auto",
    height: int = 460,
) -> Drawing:
    """Draw objective and best so far against the trial number, which is also ``customdata[0]`` of a point.

    ``allowed_drops`` by export count the trials; without them only that of the study's target is known.
    """
    numbers = study_history_numbers(trials, allowed_drops)
    if not numbers.numbers:
        return Drawing.empty(_QUESTION, "No trial has finished with a value yet.", theme=theme)
    if set(numbers.kinds) == {"baseline"}:
        return Drawing.empty(_QUESTION, "So far only O0 has a score.", theme=theme)
    drawing = Drawing(_answer(numbers), numbers.counts.text(), theme=theme, height=height)
    is_beyond = np.array(numbers.values) > numbers.ceiling
    heights = np.where(is_beyond, numbers.ceiling * 1.02, numbers.values)
    kinds = np.where(is_beyond, "beyond", numbers.kinds)
    for kind, (mark, name) in _STYLES.items():
        chosen = np.flatnonzero(kinds == kind).tolist()
        edge = ", beyond this axis" if kind == "beyond" else ""
        drawing.marks(
            ([numbers.numbers[i] for i in chosen], heights[chosen]),
            mark,
            f"Trial %{{x}} (%{{customdata[1]}}) scored %{{customdata[2]:.4g}}{edge}.",
            name=name,
            customdata=[[numbers.numbers[i], plain(numbers.summaries[i]), numbers.values[i]] for i in chosen],
        )
    hover, stroke = "Up to trial %{x} the lowest score was %{y:.4g}.", Stroke(GREEN, shape="hv")
    drawing.line((numbers.numbers, numbers.best), stroke, hover, name="lowest score so far within the allowed drop")
    drawing.set_x("Trial number", tickformat="d", **whole_ticks(numbers.numbers))
    drawing.set_y(objective)
    drawing.show_legend()
    return drawing


def value_ceiling(trials: Sequence[TrialRecord]) -> float:
    """Return the largest objective that is drawn to scale; penalties of runs that diverged stand at the edge.

    They lie orders of magnitude above real scores: three times the worst acceptable one separates them.
    """
    values = [t.value for t in trials]
    acceptable = [t.value for t in trials if t.state == "complete" and (t.feasible or t.number == 0)] or values
    if not values:
        return math.nan
    limit = 3.0 * max(acceptable) if max(acceptable) > 0 else max(values)
    return max((value for value in values if value <= limit), default=min(acceptable))


def _answer(numbers: StudyHistoryNumbers) -> str:
    if not math.isfinite(numbers.best[-1]):
        return "No trial stays within the allowed drop yet"
    return "What each trial scored, and the lowest score within the allowed drop"
