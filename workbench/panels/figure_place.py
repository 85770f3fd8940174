"""A place for a live figure: a sentence until there is something to draw.

A newly opened panel shows the question of its figure and what is missing for the answer, at the figure's height. Before
there are numbers no page needs plotly, which takes it a second or two to load.
"""

from __future__ import annotations

import html
import threading
from typing import Final

from workbench.figures.drawing import Drawing
from workbench.figures.live import LiveFigure, Pick
from workbench.panels.kit import Html, Stack, close_recursively
from workbench.panels.panel import Panel
from workbench.panels.style import words

HEIGHT: Final = 430
"""Of every figure in a place, pixels."""


class FigurePlace:
    """One live figure, made when it is first updated and closed with its panel; used from any thread.

    ``question`` is the title that the figure will have; ``missing`` says what is missing and how to get it. With a
    ``height`` of None figures keep their own.
    """

    def __init__(
        self, panel: Panel, question: str, missing: str, *, height: int | None = HEIGHT, on_pick: Pick | None = None
    ) -> None:
        self._theme, self._height, self.on_pick = panel.theme, height, on_pick
        self._lock = threading.RLock()
        self.closed = False
        self.figure: LiveFigure | None = None
        self._nothing = Html(nothing_html(question, missing), css="wb-wide")
        self.widget = Stack((self._nothing,), css="wb-stage")
        panel.cleaned_up_by(self.close)

    def update(self, drawing: Drawing, *, reset_axes: bool = False) -> None:
        """Show a newly computed drawing at once, at the height of the place if it has one; a closed place ignores it.

        Set ``reset_axes`` if it answers another question than the one before, see ``LiveFigure.update``.
        """
        if self._height is not None:
            drawing.set(height=self._height)
        with self._lock:
            if self.closed:
                return
            if self.figure is None:
                self.figure = LiveFigure(drawing, theme=self._theme, on_pick=self.on_pick)
            else:
                self.figure.update(drawing, reset_axes=reset_axes)
            self.widget.children = (self.figure.widget,)

    def clear(self) -> None:
        """Show the question again, since something else begins."""
        with self._lock:
            if not self.closed:
                self.widget.children = (self._nothing,)

    def close(self) -> None:
        """Close the figure and the place; may be called twice, also by the container of the place."""
        with self._lock:
            self.closed = True
            if self.figure is not None:
                self.figure.close()
        self._nothing.close()
        close_recursively(self.widget)


def nothing_html(question: str, missing: str) -> str:
    """Return what is shown in place of a figure that has nothing to show yet."""
    return (
        f'<div class="wb-nothing" style="height:{HEIGHT}px"><b>{html.escape(question)}</b>'
        f'<div class="wb-faint">{words(missing)}</div></div>'
    )
