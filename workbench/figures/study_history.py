"""Study history: what each trial scored, and the best one so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import BEYOND, WITHIN, TrialCounts, count_trials, outcome_of
from workbench.figures.labels import plain
from workbench.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Theme,
    empty_figure,
    new_figure,
)

__all__ = ["StudyHistoryNumbers", "study_history_figure", "study_history_numbers"]

_QUESTION = "Did the search still find something better?"


@dataclass(frozen=True, slots=True)
class StudyHistoryNumbers:
    """Numbers behind the history.

    Args:
        numbers: Trial numbers with a finite value, rising.
        values: Their objective, smaller is better.
        kinds: ``"baseline"``, ``"feasible"``, ``"partly"`` (suits some exports), ``"infeasible"`` or ``"pruned"``, one
            per trial.
        summaries: What is in effect, one per trial.
        best: Best objective among baseline and feasible trials up to each; NaN before the first.
        ceiling: Largest value drawn to scale; those above (penalties of runs that diverged) are marked at the edge.
        counts: How many trials came to what, those without a value among them.
    """

    numbers: tuple[int, ...]
    values: tuple[float, ...]
    kinds: tuple[str, ...]
    summaries: tuple[str, ...]
    best: tuple[float, ...]
    ceiling: float
    counts: TrialCounts


def study_history_numbers(
    trials: Sequence[TrialRecord], allowed_drops: Mapping[str, float] | None = None
) -> StudyHistoryNumbers:
    """Reduce trials to objective and best so far.

    Args:
        trials: Trials in any order; smaller objectives are better.
        allowed_drops: Export -> allowed drop, by which trials are counted; None knows that of the study's target only.
    """
    known = sorted((t for t in trials if math.isfinite(t.value) and t.state in {"complete", "pruned"}), key=_number)
    kinds = tuple(_kind(t, allowed_drops) for t in known)
    values = np.array([t.value for t in known], dtype=np.float64)
    eligible = np.array([t.state == "complete" and (t.feasible or t.number == 0) for t in known], dtype=bool)
    best = np.minimum.accumulate(np.where(eligible, values, np.inf)) if known else values
    return StudyHistoryNumbers(
        numbers=tuple(t.number for t in known),
        values=tuple(values.tolist()),
        kinds=kinds,
        summaries=tuple(t.summary or t.level for t in known),
        best=tuple(np.where(np.isfinite(best), best, np.nan).tolist()),
        ceiling=_ceiling(values, eligible),
        counts=count_trials(trials, allowed_drops),
    )


def study_history_figure(
    trials: Sequence[TrialRecord],
    *,
    objective: str = "Objective, smaller is better",
    allowed_drops: Mapping[str, float] | None = None,
    theme: Theme = "auto",
    height: int = 380,
) -> go.Figure:
    """Draw objective and best so far against the trial number.

    ``customdata[0]`` of a point is the trial's number.

    Args:
        trials: Trials of the study.
        objective: Axis title with its unit, for example ``"Time to target (O0 steps)"``.
        allowed_drops: See ``study_history_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = study_history_numbers(trials, allowed_drops)
    if not numbers.numbers:
        return empty_figure(_QUESTION, "No trial has finished with a value yet.", theme=theme)
    if set(numbers.kinds) == {"baseline"}:
        return empty_figure(_QUESTION, "Only O0 has a score.", theme=theme)
    figure = new_figure(_answer(numbers), numbers.counts.text(), theme=theme, height=height)
    for kind, (symbol, colour, name) in _STYLES.items():
        chosen = [i for i, k in enumerate(numbers.kinds) if k == kind and numbers.values[i] <= numbers.ceiling]
        if chosen:
            figure.add_scatter(
                x=[numbers.numbers[i] for i in chosen],
                y=[numbers.values[i] for i in chosen],
                mode="markers",
                marker={"symbol": symbol, "size": 14 if kind == "baseline" else 9, "color": colour},
                name=name,
                customdata=[[numbers.numbers[i], plain(numbers.summaries[i])] for i in chosen],
                hovertemplate="Trial %{x} (%{customdata[1]}) scored %{y:.4g}.<extra></extra>",
            )
    beyond = [i for i, value in enumerate(numbers.values) if value > numbers.ceiling]
    if beyond:
        figure.add_scatter(
            x=[numbers.numbers[i] for i in beyond],
            y=[numbers.ceiling * 1.02] * len(beyond),
            mode="markers",
            marker={"symbol": "triangle-up-open", "size": 10, "color": GREY},
            name="beyond this axis",
            customdata=[[numbers.numbers[i], plain(numbers.summaries[i]), numbers.values[i]] for i in beyond],
            hovertemplate="Trial %{x} (%{customdata[1]}) scored %{customdata[2]:.4g}, beyond this axis.<extra></extra>",
        )
    figure.add_scatter(
        x=numbers.numbers,
        y=numbers.best,
        mode="lines",
        line={"shape": "hv", "width": 2, "color": GREEN},
        name="lowest score so far within the allowed drop",
        hovertemplate="Up to trial %{x} the lowest score was %{y:.4g}.<extra></extra>",
    )
    figure.update_xaxes(title_text="Trial number", tickformat="d")
    if max(numbers.numbers) - min(numbers.numbers) < _FEWEST_NUMBERS:
        figure.update_xaxes(dtick=1)  # plotly would choose halves, and their labels would repeat each other
    figure.update_yaxes(title_text=objective)
    figure.update_layout(showlegend=True, margin={"b": 92})
    return figure


_FEWEST_NUMBERS = 8  # from here on plotly chooses whole numbers by itself
_STYLES: dict[str, tuple[str, str, str]] = {
    "baseline": ("star", ORANGE, "O0, the baseline"),
    "feasible": ("circle", BLUE, WITHIN),
    "partly": ("circle-open", BLUE, "within the drop of one export only"),
    "infeasible": ("circle-open", GREY, BEYOND),
    "pruned": ("x-thin-open", GREY, "pruned"),
}


def _number(trial: TrialRecord) -> int:
    return trial.number


def _kind(trial: TrialRecord, allowed_drops: Mapping[str, float] | None) -> str:
    outcome = outcome_of(trial, allowed_drops)
    known = {"pruned": "pruned", "O0": "baseline", WITHIN: "feasible", BEYOND: "infeasible"}
    return known.get(outcome, "partly")


def _ceiling(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], eligible: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> float:
    if not values.size:
        return float("nan")
    reference = values[eligible] if eligible.any() else values
    # Penalties lie orders of magnitude above real scores; three times the worst acceptable one separates them.
    limit = 3.0 * float(reference.max()) if reference.max() > 0 else float(values.max())
    return float(values[values <= limit].max(initial=float(reference.min())))


def _answer(numbers: StudyHistoryNumbers) -> str:
    if not math.isfinite(numbers.best[-1]):
        return "No trial stays within the allowed drop yet"
    return "What each trial scored in one run, and the lowest score within the allowed drop"
