"""A place for a live figure: a sentence until there is something to draw.

Plotly's widgets take tens of milliseconds to make and are never freed, so a panel that is opened shows the question of
its figure and what is missing for the answer, in a place of the figure's height; the figure is made with its first
numbers.
"""

from __future__ import annotations

import html
import threading
from typing import TYPE_CHECKING

from workbench.figures.live import LiveFigure, Pick
from workbench.panels.panel import Theme, close_recursively
from workbench.panels.placed_widgets import Html, Stack
from workbench.panels.style import words

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from workbench.figures.drawing import Drawing

__all__ = ["FigurePlace", "nothing_html"]


class FigurePlace:
    """One live figure, made when it is first updated; from then on it is a ``LiveFigure``. Used from any thread.

    Args:
        question: Title that the figure will have.
        missing: One sentence: what is missing and how it would come to be there.
        theme: See ``LiveFigure``.
        height: Height of the figures, pixels.
        interval: See ``LiveFigure``.
        on_pick: See ``LiveFigure``.

    Attributes:
        widget: The place, to be put into a panel's box.
        figure: The figure; None until it was updated.
    """

    def __init__(
        self,
        question: str,
        missing: str,
        *,
        theme: Theme = "auto",
        height: int,
        interval: float = 0.1,
        on_pick: Pick | None = None,
    ) -> None:
        self._theme, self._interval, self._on_pick = theme, interval, on_pick
        self._lock = threading.RLock()
        self._closed = False
        self.figure: LiveFigure | None = None
        self.widget = Stack((Html(nothing_html(question, missing, height=height), css="wb-wide"),), css="wb-stage")

    def __repr__(self) -> str:
        return f"<FigurePlace: {self.figure if self.figure is not None else 'no figure yet'}>"

    @property
    def closed(self) -> bool:
        """Whether the place was closed; updates are then ignored."""
        return self._closed

    def update(self, figure: go.Figure | Drawing) -> None:
        """Show a newly computed figure; see ``LiveFigure.update``.

        Args:
            figure: The figure, or the drawing of one.
        """
        with self._lock:
            if self._closed:
                return
            if self.figure is not None:
                self.figure.update(figure)
                return
            self.figure = LiveFigure(figure, theme=self._theme, interval=self._interval, on_pick=self._on_pick)
            (notice,) = self.widget.children
            self.widget.children = (self.figure.widget,)
            close_recursively(notice)

    def flush(self) -> None:
        """Draw what the last ``update`` held back."""
        if self.figure is not None:
            self.figure.flush()

    def close(self) -> None:
        """Close the figure, if it was made; the place itself is closed with the panel it stands in."""
        with self._lock:
            self._closed = True
            if self.figure is not None:
                self.figure.close()


def nothing_html(question: str, missing: str, *, height: int) -> str:
    """Return what stands in the place of a figure that has nothing to show yet.

    Args:
        question: Title of the figure.
        missing: One sentence.
        height: Height of the figure, pixels.
    """
    return (
        f'<div class="wb-nothing" style="height:{height}px"><b>{html.escape(question)}</b>'
        f'<div class="wb-faint">{words(missing)}</div></div>'
    )
