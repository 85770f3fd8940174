"""A figure as plain properties, before plotly has checked them.

Plotly takes tens of milliseconds to check a figure of two rows and to divide it, which is too long for a picture that
is drawn anew several times a second beside a training. ``LiveFigure`` takes a drawing as it is and hands plotly only
what changed since the last one; everybody else asks for ``Drawing.figure``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.figures.theme import (
    Theme,
    empty_layout,
    template_json,
    title_layout,
)

__all__ = ["Drawing"]

Properties = dict[str, Any]


class Drawing:
    """Traces and layout under the names that plotly.js gives them, nested: ``marker={"color": ...}``.

    Rows stand above each other and share the x axis of the lowest one, where its numbers are written.

    Args:
        title: A question, or its answer in one short line.
        subtitle: One line of figures that support it.
        theme: See ``template_json``.
        height: Height, pixels; the width follows the page.
        row_heights: Shares of the rows, from the top, which need not sum to 1.
        row_spacing: Room between two rows as a share of the whole height.

    Attributes:
        traces: Properties of each trace; to be read.
        layout: Properties of the layout; to be read.
    """

    def __init__(
        self,
        title: str,
        subtitle: str = "",
        *,
        theme: Theme = "auto",
        height: int,
        row_heights: Sequence[float] = (1.0,),
        row_spacing: float = 0.0,
    ) -> None:
        self.traces: list[Properties] = []
        self.layout: Properties = {
            "template": template_json(theme),
            "height": height,
            **title_layout(title, subtitle),
        }
        self._n_rows = len(row_heights)
        if self._n_rows > 1:
            self._divide(row_heights, row_spacing)

    @classmethod
    def empty(cls, title: str, reason: str, *, theme: Theme = "auto", height: int = 220) -> Drawing:
        """Return a drawing that says in one sentence why there is nothing to see yet.

        Args:
            title: Title the figure has when it is not empty.
            reason: One sentence: what is missing and how it would come to be there.
            theme: See ``template_json``.
            height: Height, pixels.
        """
        drawing = cls(title, theme=theme, height=height)
        drawing.set(**empty_layout(reason, theme))
        return drawing

    def figure(self) -> go.Figure:
        """Return the figure, checked by plotly; what it holds is copied.

        Raises:
            ValueError: When plotly does not know a property or a value.
        """
        return go.Figure(self.traces, self.layout)

    def add_scatter(self, *, row: int = 1, **properties: Any) -> None:
        """Add points or a line.

        Args:
            row: Row from the top, 1 the first.
            **properties: See plotly's ``scatter``; None leaves one out.
        """
        self._add("scatter", row, properties)

    def add_bar(self, *, row: int = 1, **properties: Any) -> None:
        """Add bars.

        Args:
            row: Row from the top, 1 the first.
            **properties: See plotly's ``bar``; None leaves one out.
        """
        self._add("bar", row, properties)

    def set(self, **properties: Any) -> None:
        """Set properties of the layout, nested ones beside those that are there.

        Args:
            **properties: See plotly's ``layout``.
        """
        _merge(self.layout, properties)

    def set_x(self, title: str, **properties: Any) -> None:
        """Describe the x axis that all rows share.

        Args:
            title: What it counts, with its unit.
            **properties: See plotly's ``layout.xaxis``.
        """
        self.set(**{f"xaxis{_numbered(self._n_rows)}": {"title": {"text": title}, **properties}})

    def set_y(self, title: str, *, row: int = 1, **properties: Any) -> None:
        """Describe the y axis of a row.

        Args:
            title: What it measures, with its unit.
            row: Row from the top, 1 the first.
            **properties: See plotly's ``layout.yaxis``.
        """
        self.set(**{f"yaxis{_numbered(row)}": {"title": {"text": title}, **properties}})

    def _divide(self, heights: Sequence[float], spacing: float) -> None:
        room = (1.0 - spacing * (len(heights) - 1)) / sum(heights)
        top = 1.0
        for row, height in enumerate(heights, 1):
            bottom = max(0.0, top - height * room)
            number, lowest = _numbered(row), _numbered(len(heights))
            shared = {} if number == lowest else {"matches": f"x{lowest}", "showticklabels": False}
            self.layout[f"xaxis{number}"] = {"anchor": f"y{number}", "domain": [0.0, 1.0], **shared}
            self.layout[f"yaxis{number}"] = {"anchor": f"x{number}", "domain": [bottom, top]}
            top = bottom - spacing

    def _add(self, kind: str, row: int, properties: Mapping[str, Any]) -> None:
        number = _numbered(row)
        known = {name: value for name, value in properties.items() if value is not None}
        # Told also where there is one row: a live figure then knows the trace again when there are two.
        self.traces.append({"type": kind, "xaxis": f"x{number}", "yaxis": f"y{number}", **known})


def _numbered(row: int) -> str:
    """Return what plotly writes behind the name of a row's axis."""
    return "" if row == 1 else str(row)


def _merge(into: Properties, properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        held = into.get(name)
        if isinstance(value, dict) and isinstance(held, dict):
            into[name] = dict(held)  # it may belong to somebody else
            _merge(into[name], value)
        else:
            into[name] = value
