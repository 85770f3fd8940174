"""Parameter importance: which parameters decided how a trial went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.figures.drawing import Drawing
from workbench.figures.labels import percent, plain
from workbench.figures.theme import BLUE, GREY, Theme

_QUESTION = "Which parameters decided how a trial went?"
_MAXIMUM_BARS = 14


@dataclass(frozen=True, slots=True)
class ImportanceNumbers:
    """Bars from the most to the least important."""

    names: tuple[str, ...]  # config paths; the last may stand for several
    shares: tuple[float, ...]  # they sum to 1, or are all zero when nothing mattered
    n_merged: int = 0  # parameters that the last bar stands for; 0 when it is one like the others


def importance_numbers(importance: Mapping[str, float]) -> ImportanceNumbers:
    """Sort and normalise importances, the finite ones; of many parameters the last ones are added up in one bar."""
    known = {path: value for path, value in importance.items() if math.isfinite(value)}
    total = sum(known.values()) or 1.0
    ranked = sorted(known.items(), key=lambda item: (-item[1], item[0]))
    tail = ranked[_MAXIMUM_BARS - 1 :] if len(ranked) > _MAXIMUM_BARS else []
    if tail:
        ranked = [*ranked[: _MAXIMUM_BARS - 1], (f"{len(tail)} others", sum(value for _, value in tail))]
    return ImportanceNumbers(tuple(path for path, _ in ranked), tuple(v / total for _, v in ranked), len(tail))


def importance_drawing(importance: Mapping[str, float], *, of: str = "objective", theme: Theme = "auto") -> Drawing:
    """Draw parameter importance (config path -> a number that is not negative, computed elsewhere) as bars.

    ``of`` names what the parameters explain.
    """
    numbers = importance_numbers(importance)
    if not numbers.names:
        reason = "Too few finished trials to compare the parameters, or only one was searched."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    if not numbers.shares[0] > 0:  # also where the few best trials have drawn no parameter, as tuned plain
        reason = "The trials do not tell: no parameter stands out among the best of them."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    title = f"{plain(numbers.names[0])} mattered most"
    subtitle = f"share of what the parameters explain of the {plain(of)}; not a direction"
    drawing = Drawing(title, subtitle, theme=theme, height=150 + 30 * len(numbers.names))
    drawing.bars(
        ([100 * share for share in numbers.shares], [plain(name) for name in numbers.names]),
        [BLUE] * (len(numbers.names) - 1) + [GREY if numbers.n_merged else BLUE],
        f"%{{y}} explains %{{x:.1f}} % of the {plain(of)}.",
        text=[percent(share) for share in numbers.shares],
        textposition="outside",
        cliponaxis=False,
        name="importance",
    )
    reach = max(130 * max(numbers.shares), 1.0)  # with room for what is written behind the bars, but no share above 100
    drawing.set_x("Importance (%)", range=[0, reach], tickvals=list(range(0, 101, 20)) if reach > 100 else None)
    drawing.set_y("", autorange="reversed", showgrid=False)
    drawing.set(showlegend=False, bargap=0.35)
    return drawing
