"""How tests look at a figure as a reader does: its title, its axes, and what is drawn by name."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from workbench.figures.labels import unmarked


def title(figure: go.Figure) -> str:
    """Return the title as plain text."""
    return unmarked(figure.layout.title.text)


def subtitle(figure: go.Figure) -> str:
    """Return the line of numbers below the title as plain text."""
    return unmarked(figure.layout.title.subtitle.text)


def axis_titles(figure: go.Figure) -> list[str]:
    """Return what the axes are called: the upright ones from the top, then the level ones."""
    axes = [*figure.select_yaxes(), *figure.select_xaxes()]
    return [axis.title.text for axis in axes if axis.title.text]


def trace_of(figure: go.Figure, name: str) -> Any:
    """Return the only trace whose name begins so."""
    (found,) = (trace for trace in figure.data if str(trace.name).startswith(name))
    return found


def xy(points: Any) -> tuple[list[float], list[float]]:
    """Return the positions and the heights of points or of a line."""
    return points.x.tolist(), points.y.tolist()
