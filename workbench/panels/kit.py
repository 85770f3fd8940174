"""Widgets placed and styled by the style sheet, without their own layout and style.

Every widget of ipywidgets brings two more along, its layout and its style, each with a model on the page and messages
of its own. A panel has hundreds of small texts and fields, most of which look alike: where a class of ``style.css``
says it once for all of them, a widget costs a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets
from ipywidgets.widgets.trait_types import InstanceDict

from workbench.config import ConfigError
from workbench.panels.style import error_html, note_html


class _Placed(widgets.DOMWidget):  # type: ignore[misc]  # ipywidgets ships no types
    """A widget without a layout; ``css`` names its classes, with blanks between them."""

    layout = InstanceDict(widgets.Layout, allow_none=True).tag(sync=True, **widgets.widget_serialization)

    def __init__(self, *arguments: Any, css: str = "", **options: Any) -> None:
        # ipywidgets names them so; `add_class` would send a message for each of them once the widget is made.
        super().__init__(*arguments, _dom_classes=tuple(css.split()), **options)

    def present(self, is_there: bool) -> None:
        """Show the widget, or let it take no room."""
        (self.remove_class if is_there else self.add_class)("wb-gone")

    @property
    def is_present(self) -> bool:
        """Whether the widget is seen; ipywidgets has no other way to ask for a class than its own list."""
        return "wb-gone" not in self._dom_classes

    def lock(self, locked: bool) -> None:
        """Disable the widget while work is under way, or free it again."""
        self.disabled = locked


class _Styleless(_Placed):
    """A widget without a layout and a style."""

    style = InstanceDict(widgets.Style, allow_none=True).tag(sync=True, **widgets.widget_serialization)


def _placed(kind: type[Any], base: type[Any] = _Styleless) -> Any:
    """Return a kind of ipywidgets without its layout, and without its style where it has one."""
    return type(kind.__name__, (base, kind), {"__module__": __name__})


class Html(_Styleless, widgets.HTML):  # type: ignore[misc]  # ipywidgets ships no types
    """A piece of HTML, or a sentence about the field above it."""

    def say(self, sentence: str) -> None:
        """Show what was done."""
        self.value = note_html(sentence)

    def refuse(self, sentence: str) -> None:
        """Show what is wrong; empty removes it."""
        self.value = error_html(sentence) if sentence else ""


Accordion = _placed(widgets.Accordion, _Placed)
Row = _placed(widgets.HBox, _Placed)
Stack = _placed(widgets.VBox, _Placed)
Tab = _placed(widgets.Tab, _Placed)
ToggleButtons = _placed(widgets.ToggleButtons, _Placed)  # its style says how wide the buttons are

BoundedIntText = _placed(widgets.BoundedIntText)
Button = _placed(widgets.Button)
Checkbox = _placed(widgets.Checkbox)
Combobox = _placed(widgets.Combobox)
Dropdown = _placed(widgets.Dropdown)
FileUpload = _placed(widgets.FileUpload)
FloatLogSlider = _placed(widgets.FloatLogSlider)
FloatProgress = _placed(widgets.FloatProgress)
FloatSlider = _placed(widgets.FloatSlider)
IntSlider = _placed(widgets.IntSlider)
Select = _placed(widgets.Select)
Text = _placed(widgets.Text)
Textarea = _placed(widgets.Textarea)


class JsonBox(anywidget.AnyWidget):
    """A box for JSON, as tall as its place: coloured and checked while it is typed, and taken over on leaving it.

    ``draft`` follows what is typed a quarter of a second later; ``value`` is the text on leaving the box, or entered
    with Ctrl+Enter. Setting it shows another text.
    """

    _esm = Path(__file__).with_name("json_box.js")
    value = traitlets.Unicode().tag(sync=True)
    draft = traitlets.Unicode().tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)
    help = traitlets.Unicode().tag(sync=True)


def offer(choice: Any, options: Sequence[Any], default: Any) -> None:
    """Change what there is to choose from; what is chosen stays so while it is offered, else it is the default."""
    before = choice.value
    choice.options = options
    choice.value = before if before in options else default


def read_from(field: Any, read: Callable[[], Any]) -> Any:
    """Return what ``read`` returns; None if it raises a ConfigError, which the field's ``refuse`` then shows."""
    field.refuse("")
    try:
        return read()
    except ConfigError as error:
        field.refuse(str(error))
        return None


def text_of(value: str, *, grow: bool = False) -> Html:
    """Return a piece of HTML that takes no more room than it needs or, with ``grow``, what is left in its row."""
    return Html(value, css="wb-grow" if grow else "wb-text")


def parts(*shown: widgets.Widget | str) -> tuple[widgets.Widget, ...]:
    """Return widgets, with one made for each text, which usually names the field after it."""
    return tuple(text_of(part) if isinstance(part, str) else part for part in shown)


def section(title: str, *shown: widgets.Widget | str) -> tuple[widgets.Widget, ...]:
    """Return a heading and what is beneath it, see ``parts``."""
    return parts(f"<h4>{title}</h4>", *shown)


def row(*children: widgets.Widget | str) -> widgets.HBox:
    """Return widgets and texts side by side, continued on the next line where the page is narrow."""
    return Row(parts(*children), css="wb-row")


def column(*children: widgets.Widget | str) -> widgets.VBox:
    """Return widgets and texts below each other."""
    return Stack(parts(*children), css="wb-column")


def text_box(value: str = "", tooltip: str = "", *, css: str = "wb-wide", **options: Any) -> widgets.Text:
    """Return a line of text whose value changes when the user leaves it."""
    return Text(value, tooltip=tooltip, continuous_update=False, css=css, **options)


def check_box(title: str, tooltip: str = "", *, css: str = "wb-auto", **options: Any) -> widgets.Checkbox:
    """Return a box to tick, with its title at its right."""
    return Checkbox(description=title, tooltip=tooltip, indent=False, css=css, **options)


def folded(title: str, *shown: widgets.Widget | str) -> widgets.Accordion:
    """Return what few people need, folded away beneath its title."""
    return Accordion(children=(column(*shown),), titles=(title,), selected_index=None, css="wb-more")


def choice_buttons(options: Sequence[str]) -> widgets.ToggleButtons:
    """Return buttons of which one is chosen, each as wide as its text."""
    return ToggleButtons(options=list(options), style={"button_width": "auto"}, css="wb-auto")


def close_recursively(widget: widgets.Widget) -> None:
    """Close a widget, everything inside it, and their layouts and styles."""
    children = getattr(widget, "children", ())
    widget.close()  # first, or the page would rearrange what it is about to lose
    if isinstance(widget, widgets.Box):
        widget.children = ()
    for child in children:
        close_recursively(child)
    for part in ("layout", "style"):
        owned = getattr(widget, part, None)
        if isinstance(owned, widgets.Widget):
            owned.close()
