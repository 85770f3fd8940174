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
import plotly.graph_objects as go

from workbench.core.records import TrialRecord
from workbench.core.trial_counts import count_trials
from workbench.figures.labels import compact, counted, plain
from workbench.figures.theme import (
    BLUE,
    GREY,
    LABEL_BACKGROUND,
    ORANGE,
    SKY,
    Theme,
    empty_figure,
    new_figure,
    translucent,
)

__all__ = [
    "ParallelAxis",
    "ParallelCoordinatesNumbers",
    "ParallelLine",
    "parallel_coordinates_figure",
    "parallel_coordinates_numbers",
]

_QUESTION = "Which values do the good trials have in common?"
_MAXIMUM_AXES = 7
_N_BEST = 5
_UNUSED = -0.14  # height of a parameter that a trial does not have


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """One axis.

    Args:
        name: Config path, or the objective's title.
        ticks: Pairs (height in [0, 1], text).
        is_log: Whether values stand at their logarithm.
    """

    name: str
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class ParallelLine:
    """One trial.

    Args:
        number: Trial number.
        kind: ``"best"``, ``"baseline"``, ``"within"`` or ``"beyond"`` the allowed drop.
        heights: Height on each axis; ``None`` where the trial does not have the parameter.
        values: Value on each axis as text.
        value: Objective.
        summary: What is in effect.
    """

    number: int
    kind: str
    heights: tuple[float | None, ...]
    values: tuple[str, ...]
    value: float
    summary: str


@dataclass(frozen=True, slots=True)
class ParallelCoordinatesNumbers:
    """Numbers behind the lines.

    Args:
        axes: Searched parameters that differ between trials, the most important first, then the objective.
        lines: Trials with an objective, by number.
        left_out: Searched parameters without an axis: equal in all trials, or beyond the most that fit.
        n_without_value: Trials that have no objective.
    """

    axes: tuple[ParallelAxis, ...]
    lines: tuple[ParallelLine, ...]
    left_out: tuple[str, ...]
    n_without_value: int


def parallel_coordinates_numbers(
    trials: Sequence[TrialRecord],
    *,
    importance: Mapping[str, float] | None = None,
    objective: str = "Objective",
    limit: int = _MAXIMUM_AXES,
) -> ParallelCoordinatesNumbers:
    """Place every finished trial on every axis.

    Args:
        trials: Trials in any order; smaller objectives are better.
        importance: Config path -> importance; orders the axes, which otherwise keep the order of the search space.
        objective: Name of the objective's axis.
        limit: Most axes besides the objective's.
    """
    known = sorted((t for t in trials if t.state == "complete" and math.isfinite(t.value)), key=lambda t: t.number)
    paths = list(dict.fromkeys(path for trial in known for path in trial.parameters))
    weights = importance or {}
    ranked = sorted(paths, key=lambda path: -weights.get(path, 0.0))  # stable: without weights the order stays
    differing = [path for path in ranked if len({_key(t.parameters[path]) for t in known if path in t.parameters}) > 1]
    shown = differing[:limit]
    if not known:
        return ParallelCoordinatesNumbers((), (), (), len(trials))
    placed = [_place(path, [t.parameters.get(path) for t in known]) for path in shown]
    values = [t.value for t in known]
    ceiling = _ceiling(known)
    placed.append(_place(objective, [min(value, ceiling) for value in values]))
    best = {t.number for t in sorted((t for t in known if t.feasible and t.number), key=lambda t: t.value)[:_N_BEST]}
    lines = tuple(
        ParallelLine(
            number=trial.number,
            kind="best" if trial.number in best else _kind(trial),
            heights=tuple(heights[row] for _, heights in placed),
            values=(*(_text(trial.parameters.get(path)) for path in shown), compact(trial.value)),
            value=trial.value,
            summary=trial.summary or trial.level,
        )
        for row, trial in enumerate(known)
    )
    left_out = tuple(path for path in paths if path not in shown)
    return ParallelCoordinatesNumbers(tuple(axis for axis, _ in placed), lines, left_out, len(trials) - len(known))


def parallel_coordinates_figure(
    trials: Sequence[TrialRecord],
    *,
    importance: Mapping[str, float] | None = None,
    objective: str = "Objective, smaller is better",
    theme: Theme = "auto",
    height: int = 440,
) -> go.Figure:
    """Draw one line per trial through all searched parameters and the objective.

    ``customdata[0]`` of every point is the trial's number.

    Args:
        trials: See ``parallel_coordinates_numbers``.
        importance: See ``parallel_coordinates_numbers``.
        objective: See ``parallel_coordinates_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = parallel_coordinates_numbers(trials, importance=importance, objective=objective)
    if len(numbers.axes) < 2:
        reason = "No two finished trials differ in a searched parameter yet."
        return empty_figure(_QUESTION, reason, theme=theme)
    figure = new_figure(_answer(numbers), _detail(numbers, trials), theme=theme, height=height)
    for kind in ("beyond", "within", "baseline", "best"):  # the best ones on top
        chosen = [line for line in numbers.lines if line.kind == kind]
        if chosen:
            figure.add_trace(_trace(kind, chosen, numbers.axes))
    _lay_out(figure, numbers, theme)
    return figure


_STYLES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "best": (
        f"the best {_N_BEST} within the allowed drop",
        {"color": BLUE, "width": 3},
        {"symbol": "diamond", "size": 9, "color": BLUE},
    ),
    "baseline": ("O0, the baseline", {"color": ORANGE, "width": 2}, {"symbol": "star", "size": 13, "color": ORANGE}),
    "within": (
        "within the allowed drop",
        {"color": translucent(SKY, 0.7), "width": 1.4},
        {"symbol": "circle", "size": 6, "color": SKY},
    ),
    "beyond": (
        "beyond the allowed drop",
        {"color": translucent(GREY, 0.5), "width": 1.2, "dash": "dot"},
        {"symbol": "circle-open", "size": 6, "color": GREY},
    ),
}


def _trace(kind: str, lines: Sequence[ParallelLine], axes: Sequence[ParallelAxis]) -> go.Scatter:
    name, line_style, marker = _STYLES[kind]
    x: list[float | None] = []
    y: list[float | None] = []
    custom: list[list[Any]] = []
    for line in lines:
        for position, (axis, height, value) in enumerate(zip(axes, line.heights, line.values, strict=True)):
            x.append(position)
            y.append(_UNUSED if height is None else height)
            last = position == len(axes) - 1
            said = f"scored {value}" if last else f"has {plain(axis.name)} = {plain(value)}"
            if height is None:
                said = f"does not use {plain(axis.name)}"
            rest = "" if last else f" and scored {compact(line.value)}"
            custom.append([line.number, f"Trial {line.number} ({plain(line.summary)}) {said}{rest}."])
        x.append(None)  # lift the pen
        y.append(None)
        custom.append([line.number, ""])
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line=line_style,
        marker=marker,
        name=name,
        customdata=custom,
        hovertemplate="%{customdata[1]}<extra></extra>",
        cliponaxis=False,
    )


def _lay_out(figure: go.Figure, numbers: ParallelCoordinatesNumbers, theme: Theme) -> None:
    has_unused = any(height is None for line in numbers.lines for height in line.heights)
    names = [_wrapped(axis.name) + ("<br>(log)" if axis.is_log else "") for axis in numbers.axes]
    figure.update_xaxes(
        tickvals=list(range(len(names))),
        ticktext=names,
        tickangle=0,
        range=[-0.3, len(names) - 0.55],
        side="bottom",
        showline=False,
        ticks="",
        gridwidth=2,
        title_text="Searched parameters, then what the trial scored",
        fixedrange=True,
    )
    figure.update_yaxes(
        range=[_UNUSED - 0.06 if has_unused else -0.06, 1.08],
        showgrid=False,
        showline=False,
        tickvals=[_UNUSED] if has_unused else [],
        ticktext=["not used"] if has_unused else [],
        ticks="",
        fixedrange=True,
    )
    notes = [
        {
            "x": position,
            "y": height,
            "text": plain(text),
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "middle",
            "xshift": 9,
            "font": {"size": 11},
            "bgcolor": LABEL_BACKGROUND[theme],
            "borderpad": 1,
        }
        for position, axis in enumerate(numbers.axes)
        for height, text in axis.ticks
    ]
    figure.update_layout(showlegend=True, margin={"b": 132, "r": 40}, annotations=notes)


def _place(name: str, values: Sequence[Any]) -> tuple[ParallelAxis, list[float | None]]:
    """Return an axis and the height of every value on it; missing values have none."""
    given = [value for value in values if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        return _place_numbers(name, values, [float(value) for value in given])
    words = sorted({_key(value): value for value in given}.items(), key=lambda item: item[0])
    height_of = {key: index / max(1, len(words) - 1) for index, (key, _) in enumerate(words)}
    ticks = tuple((height_of[key], _text(value)) for key, value in words)
    return ParallelAxis(name, ticks), [None if value is None else height_of[_key(value)] for value in values]


def _place_numbers(name: str, values: Sequence[Any], given: Sequence[float]) -> tuple[ParallelAxis, list[float | None]]:
    low, high = min(given), max(given)
    is_log = low > 0 and high / low >= 100
    scaled = math.log if is_log else float
    start, span = scaled(low), scaled(high) - scaled(low)
    heights = [None if value is None else (scaled(value) - start) / span if span else 0.5 for value in values]
    middle = math.exp(start + span / 2) if is_log else start + span / 2
    marked = sorted(set(given))
    if len(marked) > 6:  # else name exactly those
        marked = [low, middle, high]
    ticks = tuple(((scaled(value) - start) / span if span else 0.5, compact(value)) for value in marked)
    return ParallelAxis(name, ticks, is_log), heights


def _ceiling(trials: Sequence[TrialRecord]) -> float:
    """Return the largest objective drawn to scale; penalties of runs that diverged stand on the axis' end."""
    reference = [t.value for t in trials if t.feasible or t.number == 0] or [t.value for t in trials]
    limit = 3.0 * max(reference, default=0.0)
    return max((t.value for t in trials if t.value <= limit), default=max(reference, default=0.0))


def _kind(trial: TrialRecord) -> str:
    if trial.number == 0:
        return "baseline"
    return "within" if trial.feasible else "beyond"


def _key(value: Any) -> str:
    return str(value)


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
    placed = [_UNUSED if height is None else height for height in heights]
    return float(np.ptp(placed))


def _detail(numbers: ParallelCoordinatesNumbers, trials: Sequence[TrialRecord]) -> str:
    text = counted(len(numbers.lines), "finished trial")
    if numbers.left_out:
        text += f"; {counted(len(numbers.left_out), 'parameter')} not shown"
    shown = {line.number for line in numbers.lines}
    left = count_trials(trial for trial in trials if trial.number not in shown).plain_text()
    return text + (f"; not shown: {left}" if left else "")
