"""How tests look at a panel as a person does: by what stands in it."""

from __future__ import annotations

import html
import re
import threading
from copy import deepcopy
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import Panel

__all__ = ["drawn", "everything", "our_threads", "text_in"]


def everything(widget: widgets.Widget) -> list[Any]:
    """Return a widget and all that is inside it."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in everything(child))]


def text_in(widget: widgets.Widget | Panel) -> str:
    """Return the text of all HTML inside a widget, without its tags."""
    root = widget.widget if isinstance(widget, Panel) else widget
    raw = " ".join(w.value for w in everything(root) if isinstance(w, widgets.HTML))
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "", raw, flags=re.DOTALL))


def our_threads() -> list[str]:
    """Return the names of the threads that panels have started and that still live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("workbench ")]


def drawn(place: FigurePlace) -> go.Figure:
    """Return the figure that stands in a place."""
    assert place.figure is not None, "there is nothing to see yet"
    return go.Figure(place.figure.widget.data, deepcopy(place.figure.widget.layout))
