"""How tests look at a panel as a person does: by what stands in it."""

from __future__ import annotations

import html
import re
import threading
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import Panel, PanelState, WorkPanel

LONG = 120.0
"""Seconds that a test waits for what takes milliseconds on an idle machine."""


def everything(widget: widgets.Widget) -> list[Any]:
    """Return a widget and all that is inside it."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in everything(child))]


def one_of(widget: widgets.Widget, kind: type) -> Any:
    """Return the only widget of a kind inside another one."""
    (found,) = (each for each in everything(widget) if isinstance(each, kind))
    return found


def html_in(widget: widgets.Widget | Panel) -> str:
    """Return all HTML inside a widget, but for the places where a config path may be broken."""
    root = widget.widget if isinstance(widget, Panel) else widget
    return " ".join(each.value for each in everything(root) if isinstance(each, widgets.HTML)).replace("<wbr>", "")


def text_in(widget: widgets.Widget | Panel) -> str:
    """Return the text of all HTML inside a widget, without its tags."""
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "", html_in(widget), flags=re.DOTALL))


def missing(shown: widgets.Widget | Panel, *sentences: str) -> list[str]:
    """Return which sentences do not stand in a widget."""
    text = text_in(shown)
    return [sentence for sentence in sentences if sentence.replace("`", "") not in text]


def ended(panel: WorkPanel, state: PanelState = PanelState.DONE) -> str:
    """Wait for a panel's work, find the panel in a state, with no error where it is done, and return its text."""
    assert panel.wait(LONG)
    assert panel.state is state
    assert state is PanelState.FAILED or panel.error is None
    return text_in(panel)


def run(panel: Any, state: PanelState = PanelState.DONE) -> str:
    """Click Start, and see how it ended."""
    panel.start_button.click()
    return ended(panel, state)


def our_threads() -> list[str]:
    """Return the names of the threads that panels have started and that still live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("workbench ")]


def drawn(place: FigurePlace) -> go.Figure:
    """Return the figure that stands in a place."""
    assert place.figure is not None, "there is nothing to see yet"
    return place.figure.shown
