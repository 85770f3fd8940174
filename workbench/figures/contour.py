"""Contour: where in the plane of two parameters the good scores lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.core.records import TrialRecord
from workbench.figures.drawing import Drawing, Mark
from workbench.figures.labels import compact, counted, plain
from workbench.figures.slices import is_number, is_wide, scored_trials, sliced_parameters
from workbench.figures.study_history import value_ceiling
from workbench.figures.theme import BLUE, ORANGE, SKY, Theme
from workbench.figures.thinning import Floats, thin_marks

_GRID = 40  # points of the surface in each direction
_WIDTH = 0.12  # of the kernel that smooths, as a share of each axis
_FAR = 0.25  # from the next trial, as a share of each axis: there nothing is known
_MOST = 1000  # points that are drawn, of more an even choice
_FEWEST = 8  # trials, below which a surface would be made up
# Opaque: plotly draws the colour bar without transparency, so that other shades would not be those of the plane.
_SHADES = ((0.0, "#CDE9FA"), (0.35, SKY), (0.7, BLUE), (1.0, "#6E40AA"))


@dataclass(frozen=True, eq=False)
class ContourNumbers:
    """Numbers behind a contour; one entry per trial that drew both parameters and has a score."""

    numbers: tuple[int, ...]
    x: Floats
    y: Floats
    values: Floats  # of the objective, no larger than its ceiling; smaller is better
    grid_x: Floats  # ``[n]``
    grid_y: Floats  # ``[m]``
    surface: Floats  # smoothed objective ``[m, n]``; NaN far from every trial
    is_log: tuple[bool, bool]  # whether x and y stand at their logarithm


def contour_numbers(trials: Sequence[TrialRecord], x: str, y: str) -> ContourNumbers | None:
    """Smooth what the trials scored over two numeric parameters; None where there are too few to do so.

    The surface is a kernel mean of the scores (Nadaraya and Watson, 1964): it interpolates nothing that no trial near
    has seen.
    """
    scored = scored_trials(trials)
    known = [one for one in scored if is_number(one.parameters.get(x)) and is_number(one.parameters.get(y))]
    places = np.array([[one.parameters[x], one.parameters[y]] for one in known], dtype=np.float64).reshape(-1, 2)
    if len(known) < _FEWEST or min(len(set(column)) for column in places.T) < 3:
        return None
    is_log = [is_wide(column.tolist()) for column in places.T]
    scaled = np.stack([np.log10(c) if log else c for c, log in zip(places.T, is_log, strict=True)])
    low, span = scaled.min(axis=1, keepdims=True), np.ptp(scaled, axis=1, keepdims=True)
    unit = (scaled - low) / span
    values = np.minimum([one.value for one in known], value_ceiling(scored))
    at = np.linspace(0.0, 1.0, _GRID)
    surface = _smoothed(unit, values, at)
    grid = at * span + low
    across, upward = (10.0**row if log else row for row, log in zip(grid, is_log, strict=True))
    numbers = tuple(one.number for one in known)
    xs, ys = places.T
    return ContourNumbers(numbers, xs, ys, values, across, upward, surface, (is_log[0], is_log[1]))


def contour_drawing(
    trials: Sequence[TrialRecord],
    x: str,
    y: str,
    *,
    objective: str = "Objective, smaller is better",
    theme: Theme = "auto",
    height: int = 460,
) -> Drawing:
    """Draw the smoothed score over two searched parameters, config paths, with the trials that it is known from.

    ``customdata[0]`` of a point is the trial's number.
    """
    title = f"{plain(x)} and {plain(y)}"
    numbers = contour_numbers(trials, x, y)
    if numbers is None:
        return Drawing.empty(title, f"Fewer than {_FEWEST} finished trials differ in both.", theme=theme)
    detail = f"smoothed over {counted(len(numbers.numbers), 'trial')}; lighter is better, blank means unknown"
    drawing = Drawing(title, detail, theme=theme, height=height)
    drawing.add(
        "contour",
        x=numbers.grid_x,
        y=numbers.grid_y,
        z=[[round(value, 6) if math.isfinite(value) else None for value in row] for row in numbers.surface.tolist()],
        colorscale=[list(stop) for stop in _SHADES],
        ncontours=12,
        line={"width": 0.5},
        colorbar={"title": {"text": objective}},
    )
    shown = thin_marks(np.arange(len(numbers.numbers)), _MOST)
    drawing.marks(
        (numbers.x[shown], numbers.y[shown]),
        Mark("circle", 6, ORANGE),
        "Trial %{customdata[0]} scored %{customdata[1]} at %{x:.4g}, %{y:.4g}.",
        customdata=[[numbers.numbers[i], compact(float(numbers.values[i]))] for i in shown],
        name="trials",
    )
    scales: list[dict[str, Any]] = [{"type": "log"} if log else {} for log in numbers.is_log]
    drawing.set_x(plain(x), **scales[0])
    drawing.set_y(plain(y), **scales[1])
    return drawing


def contour_pair(
    trials: Sequence[TrialRecord], importance: Mapping[str, float] | None = None
) -> tuple[str, str] | None:
    """Return the two most important parameters that a contour can be drawn over; None where there are none."""
    ranked = sliced_parameters(trials, importance, most=8)
    pairs = ((one, other) for i, other in enumerate(ranked) for one in ranked[:i])
    return next((pair for pair in pairs if contour_numbers(trials, *pair) is not None), None)


def _smoothed(unit: Floats, values: Floats, at: Floats) -> Floats:
    """Return the kernel mean on a grid ``[m, n]`` of the unit square; NaN where no trial is near."""
    x, y = np.meshgrid(at, at)
    apart = (x[..., None] - unit[0]) ** 2 + (y[..., None] - unit[1]) ** 2
    weights = np.exp(-apart / (2.0 * _WIDTH**2))
    mean: npt.NDArray[np.float64] = (weights @ values) / weights.sum(axis=-1)
    return np.where(apart.min(axis=-1) <= _FAR**2, mean, np.nan)
