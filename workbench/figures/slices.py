"""Slice: what the trials of a study scored at each value of one parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import BEYOND, outcome_of
from workbench.figures.drawing import Drawing, Mark
from workbench.figures.labels import compact, plain
from workbench.figures.study_history import value_ceiling
from workbench.figures.theme import BLUE, GREY, ORANGE, Theme
from workbench.figures.thinning import thin_marks

_N_BEST = 5
_MOST = 600  # points of a kind: in a small figure more of them cover each other
_WIDE = 30.0  # highest over lowest value, from which an axis is logarithmic
_KINDS: dict[str, tuple[Mark, str]] = {
    "beyond": (Mark("circle-open", 7, GREY), "beyond"),
    "within": (Mark("circle", 7, BLUE), "within"),
    "best": (Mark("diamond", 10, ORANGE), "best"),
}


@dataclass(frozen=True, slots=True)
class SliceNumbers:
    """Numbers behind a slice, one entry per trial that drew the parameter and has a score, by number."""

    numbers: tuple[int, ...]
    places: tuple[Any, ...]  # drawn values: numbers, or words
    values: tuple[float, ...]  # of the objective; smaller is better
    kinds: tuple[str, ...]  # keys of the styles
    is_log: bool  # whether values stand at their logarithm
    ceiling: float  # largest objective drawn to scale


def slice_numbers(
    trials: Sequence[TrialRecord], parameter: str, allowed_drops: Mapping[str, float] | None = None
) -> SliceNumbers:
    """Reduce trials to one parameter and their scores; arguments as for ``slice_figure``."""
    scored = scored_trials(trials)
    known = sorted((one for one in scored if parameter in one.parameters), key=lambda one: one.number)
    good = sorted((one for one in known if _fits(one, allowed_drops)), key=lambda one: one.value)
    best = {one.number for one in good[:_N_BEST]}
    places = [one.parameters[parameter] for one in known]
    are_numbers = all(map(is_number, places))
    return SliceNumbers(
        numbers=tuple(one.number for one in known),
        places=tuple(places) if are_numbers else tuple(map(_word, places)),
        values=tuple(one.value for one in known),
        kinds=tuple(
            "best" if one.number in best else "within" if _fits(one, allowed_drops) else "beyond" for one in known
        ),
        is_log=are_numbers and is_wide(places),
        ceiling=value_ceiling(scored),
    )


def slice_drawing(
    trials: Sequence[TrialRecord],
    parameter: str,
    *,
    objective: str = "Objective, smaller is better",
    allowed_drops: Mapping[str, float] | None = None,
    theme: Theme = "auto",
    height: int = 330,
) -> Drawing:
    """Draw what each trial scored against its value of a searched parameter, a config path.

    ``customdata[0]`` of a point is the trial's number. Trials that did not draw the parameter, because it was not in
    effect, have no point; scores beyond the others stand at the edge.
    """
    numbers = slice_numbers(trials, parameter, allowed_drops)
    if len(set(numbers.places)) < 2:
        return Drawing.empty(plain(parameter), "No two finished trials differ in it yet.", theme=theme)
    drawing = Drawing(plain(parameter), _detail(numbers), theme=theme, height=height)
    for kind, (mark, name) in _KINDS.items():
        chosen = thin_marks(np.flatnonzero(np.array(numbers.kinds) == kind), _MOST).tolist()
        drawing.marks(
            ([numbers.places[i] for i in chosen], [min(numbers.values[i], numbers.ceiling) for i in chosen]),
            mark,
            "Trial %{customdata[0]} scored %{customdata[1]:.4g} at %{x}.",
            name=name,
            customdata=[[numbers.numbers[i], numbers.values[i]] for i in chosen],
        )
    axis: dict[str, Any] = {"type": "log", "dtick": "D2"} if numbers.is_log else {}
    if isinstance(numbers.places[0], str):
        axis = {"type": "category", "categoryorder": "category ascending"}
    drawing.set_x("", **axis)  # its name is the title
    drawing.set_y(objective)
    drawing.set(legend={"entrywidth": 84, "entrywidthmode": "pixels", "xref": "container"})
    drawing.show_legend(66)
    return drawing


def sliced_parameters(
    trials: Sequence[TrialRecord], importance: Mapping[str, float] | None = None, most: int = 6
) -> list[str]:
    """Return the parameters that are worth a slice: those in which finished trials differ, most important first."""
    drawn: dict[str, set[str]] = {}
    for one in scored_trials(trials):
        for path, value in one.parameters.items():
            drawn.setdefault(path, set()).add(repr(value))
    differing = [path for path, values in drawn.items() if len(values) > 1]
    weights = importance or {}
    return sorted(differing, key=lambda path: -weights.get(path, 0.0))[:most]


def scored_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that came to their end with a score."""
    return [one for one in trials if one.state == "complete" and math.isfinite(one.value)]


def is_number(value: object) -> bool:
    """Return whether a parameter's value has a place on an axis of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_wide(values: Sequence[float]) -> bool:
    """Return whether numbers reach so far that their axis has to be logarithmic, and can be."""
    return len(values) > 0 and bool(min(values) > 0 and max(values) / min(values) > _WIDE)


def _fits(trial: TrialRecord, allowed_drops: Mapping[str, float] | None) -> bool:
    return outcome_of(trial, allowed_drops) != BEYOND if not math.isnan(trial.metric_deficit) else trial.feasible


def _detail(numbers: SliceNumbers) -> str:
    """Say where the best trials lie."""
    best = [numbers.places[i] for i, kind in enumerate(numbers.kinds) if kind == "best"]
    if not best:
        return "no trial here keeps the quality"
    if isinstance(best[0], str):
        return f"the best: {', '.join(dict.fromkeys(plain(one) for one in best))}"
    low, high = compact(min(best)), compact(max(best))
    return f"the best lie at {low}" if low == high else f"the best lie between {low} and {high}"


def _word(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
