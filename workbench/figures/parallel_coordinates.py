"""Parallel coordinates: which values the good trials of a study have in common.

One axis per searched parameter and one for the objective; a trial is a line through them all. Lines are ordinary
scatter traces, not plotly's ``parcoords``: those have neither hover text nor a click, and tell trials apart by colour
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import count_trials
from workbench.figures.drawing import Drawing, Mark, Stroke
from workbench.figures.labels import compact, counted, plain
from workbench.figures.slices import is_number, scored_trials, sliced_parameters
from workbench.figures.study_history import value_ceiling
from workbench.figures.theme import BLUE, GREY, ORANGE, SKY, Theme, inks, translucent

_QUESTION = "Which values do the good trials have in common?"
_MOST_ABREAST = 4  # axes whose names fit beside each other on a narrow page
_MAXIMUM_AXES = 7
_N_BEST = 5
_UNUSED = -0.14  # height of a parameter that a trial does not have
# In the order of drawing: the best ones on top.
_STYLES: dict[str, tuple[str, Stroke, Mark]] = {
    "beyond": ("beyond the allowed drop", Stroke(translucent(GREY, 0.5), 1.2, "dot"), Mark("circle-open", 6, GREY)),
    "within": ("within the allowed drop", Stroke(translucent(SKY, 0.7), 1.4), Mark("circle", 6, SKY)),
    "baseline": ("O0, the baseline", Stroke(ORANGE), Mark("star", 13, ORANGE)),
    "best": ("the best within the allowed drop", Stroke(BLUE, 3), Mark("diamond", 9, BLUE)),
}


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """One axis."""

    name: str  # config path, or the objective's title
    ticks: tuple[tuple[float, str], ...]  # height in [0, 1], text
    is_log: bool = False  # whether values stand at their logarithm


@dataclass(frozen=True, slots=True)
class ParallelLine:
    """One trial."""

    number: int
    kind: str  # key of the styles
    heights: tuple[float | None, ...]  # on each axis; None where the trial does not have the parameter
    values: tuple[str, ...]  # on each axis as text
    value: float  # objective
    summary: str  # what is in effect


@dataclass(frozen=True, slots=True)
class ParallelCoordinatesNumbers:
    """Numbers behind the lines."""

    axes: tuple[ParallelAxis, ...]  # parameters that differ between trials, most important first, then the objective
    lines: tuple[ParallelLine, ...]  # trials with an objective, by number
    left_out: tuple[str, ...]  # parameters without an axis: equal in all trials, or beyond the most that fit


def parallel_coordinates_numbers(
    trials: Sequence[TrialRecord],
    *,
    importance: Mapping[str, float] | None = None,
    objective: str = "Objective",
    limit: int = _MAXIMUM_AXES,
) -> ParallelCoordinatesNumbers:
    """Place every finished trial on every axis, of which there are at most ``limit`` besides the objective's."""
    known = sorted(scored_trials(trials), key=lambda t: t.number)
    shown = sliced_parameters(known, importance, most=limit)
    if not known:
        return ParallelCoordinatesNumbers((), (), ())
    placed = [_place(path, [t.parameters.get(path) for t in known]) for path in shown]
    ceiling = value_ceiling(known)
    placed.append(_place(objective, [min(t.value, ceiling) for t in known]))
    good = sorted((t for t in known if t.feasible and t.number), key=lambda t: t.value)
    best = {t.number: "best" for t in good[:_N_BEST]}
    lines = tuple(
        ParallelLine(
            number=trial.number,
            kind="baseline" if trial.number == 0 else best.get(trial.number, "within" if trial.feasible else "beyond"),
            heights=tuple(heights[row] for _, heights in placed),
            values=(*(_text(trial.parameters.get(path)) for path in shown), compact(trial.value)),
            value=trial.value,
            summary=trial.summary or trial.level,
        )
        for row, trial in enumerate(known)
    )
    left_out = dict.fromkeys(path for trial in known for path in trial.parameters if path not in shown)
    return ParallelCoordinatesNumbers(tuple(axis for axis, _ in placed), lines, tuple(left_out))


def parallel_coordinates_drawing(
    trials: Sequence[TrialRecord],
    *,
    importance: Mapping[str, float] | None = None,
    objective: str = "Objective, smaller is better",
    theme: Theme = "auto",
    height: int = 440,
) -> Drawing:
    """Draw one line per trial through all searched parameters and the objective, of which smaller is better.

    ``importance`` by config path orders the axes, which otherwise keep the order of the search space.
    ``customdata[0]`` of every point is the trial's number.
    """
    numbers = parallel_coordinates_numbers(trials, importance=importance, objective=objective)
    if len(numbers.axes) < 2:
        return Drawing.empty(_QUESTION, "No two finished trials differ in a searched parameter yet.", theme=theme)
    drawing = Drawing(_answer(numbers), _detail(numbers, trials), theme=theme, height=height)
    for kind in _STYLES:
        lines = [line for line in numbers.lines if line.kind == kind]
        if lines:
            _add_lines(drawing, kind, lines, numbers.axes)
    names = [_wrapped(axis.name) + ("<br>(log)" if axis.is_log else "") for axis in numbers.axes]
    if len(names) > _MOST_ABREAST:  # names are wider than the room between two axes: every second one stands lower
        depth = max(name.count("<br>") for name in names[::2]) + 1
        names[1::2] = ["<br>" * depth + name for name in names[1::2]]
    drawing.set_x(
        "Searched parameters, then what the trial scored",
        tickvals=list(range(len(names))),
        ticktext=names,
        tickangle=0,
        range=[-0.3, len(names) - 0.55],
        side="bottom",
        showline=False,
        ticks="",
        gridwidth=2,
        fixedrange=True,
    )
    has_unused = any(height is None for line in numbers.lines for height in line.heights)
    labels = {"tickvals": [_UNUSED], "ticktext": ["not used"]} if has_unused else {"tickvals": [], "ticktext": []}
    reach = [_UNUSED - 0.06 if has_unused else -0.06, 1.08]
    drawing.set(yaxis={**labels, "range": reach, "showgrid": False, "showline": False, "ticks": "", "fixedrange": True})
    beside = {"xanchor": "left", "yanchor": "middle", "xshift": 9, "font": {"size": 11}}
    for position, axis in enumerate(numbers.axes):
        for at, text in axis.ticks:
            drawing.note(plain(text), x=position, y=at, **beside, bgcolor=inks(theme).label, borderpad=1)
    drawing.set(margin={"r": 40})
    drawing.show_legend(132)
    return drawing


def _add_lines(drawing: Drawing, kind: str, lines: Sequence[ParallelLine], axes: Sequence[ParallelAxis]) -> None:
    name, stroke, mark = _STYLES[kind]
    x = [*range(len(axes)), None] * len(lines)  # None lifts the pen
    y: list[float | None] = []
    custom: list[list[Any]] = []
    for line in lines:
        trial, score = f"Trial {line.number} ({plain(line.summary)})", f"scored {line.values[-1]}"
        y += [*(_UNUSED if height is None else height for height in line.heights), None]
        for axis, height, value in zip(axes[:-1], line.heights, line.values, strict=False):
            path = plain(axis.name)
            has = f"does not use {path}" if height is None else f"has {path} = {plain(value)}"
            custom.append([line.number, f"{trial} {has} and {score}."])
        custom += [[line.number, f"{trial} {score}."], [line.number, ""]]
    look = {"mode": "lines+markers", "marker": {"symbol": mark.symbol, "size": mark.size, "color": mark.colour}}
    drawing.line((x, y), stroke, "%{customdata[1]}", **look, name=name, customdata=custom, cliponaxis=False)


def _place(name: str, values: Sequence[Any]) -> tuple[ParallelAxis, list[float | None]]:
    """Return an axis and the height of every value on it; missing values have none."""
    given = [value for value in values if value is not None]
    if all(map(is_number, given)):
        return _place_numbers(name, values, [float(value) for value in given])
    words = {str(value): value for value in given}
    height_of = {key: index / max(1, len(words) - 1) for index, key in enumerate(sorted(words))}
    ticks = tuple((height, _text(words[key])) for key, height in height_of.items())
    return ParallelAxis(name, ticks), [None if value is None else height_of[str(value)] for value in values]


def _place_numbers(name: str, values: Sequence[Any], given: Sequence[float]) -> tuple[ParallelAxis, list[float | None]]:
    low, high = min(given), max(given)
    is_log = low > 0 and high / low >= 100
    scaled = math.log if is_log else float
    start, span = scaled(low), scaled(high) - scaled(low)
    middle = math.exp(start + span / 2) if is_log else start + span / 2
    marked = sorted(set(given))
    if len(marked) > 6:  # else name exactly those
        marked = [low, middle, high]

    def height(value: float) -> float:
        return (scaled(value) - start) / span if span else 0.5

    ticks = tuple((height(value), compact(value)) for value in marked)
    return ParallelAxis(name, ticks, is_log), [None if value is None else height(value) for value in values]


def _text(value: Any) -> str:
    if value is None:
        return "not used"
    if isinstance(value, bool):
        return "on" if value else "off"
    return compact(value) if isinstance(value, int | float) else str(value)


def _wrapped(name: str) -> str:
    """Break a config path at its dots, and the objective's title at its comma, so that axes can stand close."""
    return "<br>".join(part.strip() for part in plain(name).replace(",", ",\n").replace(".", ".\n").split("\n"))


def _answer(numbers: ParallelCoordinatesNumbers) -> str:
    """Name a parameter on which the best trials agree and the others do not, if there is one."""
    best = [line for line in numbers.lines if line.kind == "best"]
    rest = [line for line in numbers.lines if line.kind in {"within", "beyond"}]
    if len(best) >= 3 and len(rest) >= 3:
        spread = [(_spread(best, axis), _spread(rest, axis), axis) for axis in range(len(numbers.axes) - 1)]
        agreeing = [(own - other, axis) for own, other, axis in spread if own <= 0.1 and other >= 0.3]
        if agreeing:
            axis = min(agreeing)[1]
            values = sorted({line.values[axis] for line in best})
            said = values[0] if len(values) == 1 else f"near {values[len(values) // 2]}"
            return f"The best {len(best)} trials agree on {plain(numbers.axes[axis].name)}: {plain(said)}"
    return _QUESTION


def _spread(lines: Sequence[ParallelLine], axis: int) -> float:
    heights = [line.heights[axis] for line in lines]
    return float(np.ptp([_UNUSED if height is None else height for height in heights]))


def _detail(numbers: ParallelCoordinatesNumbers, trials: Sequence[TrialRecord]) -> str:
    text = counted(len(numbers.lines), "finished trial")
    if numbers.left_out:
        text += f"; {counted(len(numbers.left_out), 'parameter')} not shown"
    shown = {line.number for line in numbers.lines}
    left = count_trials(trial for trial in trials if trial.number not in shown).plain_text()
    return text + (f"; not shown: {left}" if left else "")
