"""A place for a live figure: a sentence until there is something to draw.

Plotly's widgets take tens of milliseconds to make and are never freed, so a panel that is opened shows the question of
its figure and what is missing for the answer, in a place of the figure's height; the figure is made with its first
numbers.
"""

from __future__ import annotations

import html
import threading
from typing import TYPE_CHECKING, Final

from workbench.figures.drawing import Drawing
from workbench.figures.live import LiveFigure, Pick
from workbench.panels.kit import Html, Stack, close_recursively
from workbench.panels.panel import Panel
from workbench.panels.style import words

if TYPE_CHECKING:
    import plotly.graph_objects as go

HEIGHT: Final = 430
"""Of every figure in a place, pixels: plotly gives up following the width when a height changes."""


class FigurePlace:
    """One live figure, made when it is first updated and closed with its panel; used from any thread.

    ``question`` is the title that the figure will have; ``missing`` says what is missing and how it would come to be.
    """

    def __init__(self, panel: Panel, question: str, missing: str, *, on_pick: Pick | None = None) -> None:
        self._theme, self.on_pick = panel.theme, on_pick
        self._lock = threading.RLock()
        self.closed = False
        self.figure: LiveFigure | None = None
        self.widget = Stack((Html(nothing_html(question, missing), css="wb-wide"),), css="wb-stage")
        panel.cleaned_up_by(self.close)

    def update(self, figure: go.Figure | Drawing) -> None:
        """Show a newly computed figure at once, in the height of the place; a closed place ignores it."""
        if isinstance(figure, Drawing):
            figure.set(height=HEIGHT)
        else:
            figure.update_layout(height=HEIGHT)
        with self._lock:
            if self.closed:
                return
            if self.figure is not None:
                self.figure.update(figure)
                return
            self.figure = LiveFigure(figure, theme=self._theme, interval=0.0, on_pick=self.on_pick)
            (notice,) = self.widget.children
            self.widget.children = (self.figure.widget,)
            close_recursively(notice)

    def close(self) -> None:
        """Close the figure and the place; may be called twice, and by whatever the place stands in, too."""
        with self._lock:
            self.closed = True
            if self.figure is not None:
                self.figure.close()
        close_recursively(self.widget)


def nothing_html(question: str, missing: str) -> str:
    """Return what stands in the place of a figure that has nothing to show yet."""
    return (
        f'<div class="wb-nothing" style="height:{HEIGHT}px"><b>{html.escape(question)}</b>'
        f'<div class="wb-faint">{words(missing)}</div></div>'
    )
