"""Parameter importance: which knobs decided how a trial went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from workbench.figures.labels import percent, plain
from workbench.figures.theme import (
    BLUE,
    GREY,
    Theme,
    empty_figure,
    new_figure,
)

__all__ = ["ImportanceNumbers", "importance_figure", "importance_numbers"]

_QUESTION = "Which parameters decided how a trial went?"
_MAXIMUM_BARS = 14


@dataclass(frozen=True, slots=True)
class ImportanceNumbers:
    """Bars from the most to the least important.

    Args:
        names: Config paths; the last may stand for several.
        shares: Share of each, summing to 1 (all zero when nothing mattered).
        n_merged: How many paths the last bar stands for; 0 when each has its own.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    n_merged: int


def importance_numbers(importance: Mapping[str, float], *, limit: int = _MAXIMUM_BARS) -> ImportanceNumbers:
    """Sort and normalise importances; what exceeds ``limit`` bars is added up in the last one.

    Args:
        importance: Config path -> importance, not negative; non-finite ones are left out.
        limit: Most bars.
    """
    known = {path: max(0.0, value) for path, value in importance.items() if math.isfinite(value)}
    total = sum(known.values()) or 1.0
    ranked = sorted(known.items(), key=lambda item: (-item[1], item[0]))
    head, tail = ranked, ranked[len(ranked) :]
    if len(ranked) > limit:
        head, tail = ranked[: limit - 1], ranked[limit - 1 :]
    names = [path for path, _ in head] + ([f"{len(tail)} others"] if tail else [])
    shares = [value / total for _, value in head] + ([sum(v for _, v in tail) / total] if tail else [])
    return ImportanceNumbers(tuple(names), tuple(shares), len(tail))


def importance_figure(importance: Mapping[str, float], *, theme: Theme = "auto") -> go.Figure:
    """Draw parameter importance as bars.

    Args:
        importance: Config path -> importance, computed elsewhere.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
    """
    numbers = importance_numbers(importance)
    if not numbers.names:
        return empty_figure(
            _QUESTION, "Too few finished trials to tell parameters apart, or only one was searched.", theme=theme
        )
    title = f"{plain(numbers.names[0])} mattered most" if numbers.shares[0] > 0 else "No parameter made a difference"
    figure = new_figure(
        title,
        "share of what the parameters explain of the objective; not a direction",
        theme=theme,
        height=150 + 30 * len(numbers.names),
    )
    figure.add_bar(
        x=[100 * share for share in numbers.shares],
        y=[plain(name) for name in numbers.names],
        orientation="h",
        marker={"color": [GREY if name.endswith(" others") else BLUE for name in numbers.names]},
        text=[percent(share) for share in numbers.shares],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y} explains %{x:.1f} % of the objective.<extra></extra>",
        name="importance",
    )
    figure.update_xaxes(title_text="Importance (%)", range=[0, max(110 * max(numbers.shares), 1.0)])
    figure.update_yaxes(title_text="", autorange="reversed", showgrid=False)
    figure.update_layout(showlegend=False, bargap=0.35)
    return figure
