"""Widgets that the style sheet places: without a layout and a style of their own.

Every widget of ipywidgets brings two more along, its layout and its style, each with a model on the page and messages
of its own. A panel has hundreds of small texts and fields, most of which look alike: what a class of the style sheet
says once for all of them needs neither. Such a widget costs the kernel a third and the page a third of the models.

A widget that needs measures of its own, or a host that has to change them, takes the one of ipywidgets.
"""

from __future__ import annotations

from typing import Any, Final

import ipywidgets as widgets
from ipywidgets.widgets.trait_types import InstanceDict

__all__ = [
    "PLACES",
    "Accordion",
    "BoundedIntText",
    "Button",
    "Checkbox",
    "Combobox",
    "Dropdown",
    "FileUpload",
    "FloatLogSlider",
    "FloatProgress",
    "FloatSlider",
    "Html",
    "IntProgress",
    "IntSlider",
    "Row",
    "Select",
    "Stack",
    "Tab",
    "Text",
    "Textarea",
    "ToggleButtons",
]

PLACES: Final = """
.wb-panel .wb-body{flex-flow:row wrap;gap:8px 14px}
.wb-panel .wb-controls{flex:0 1 284px}
.wb-panel .wb-plots{flex:1 1 376px;min-width:0}
.wb-panel .wb-text{margin:0;min-width:0;flex:0 1 auto}
.wb-panel .wb-grow{margin:0;min-width:0;flex:1 1 0%}
.wb-panel .wb-row{flex-flow:row wrap;align-items:center;gap:4px 8px}
.wb-panel .wb-line{flex-flow:row nowrap;align-items:center;gap:6px;width:100%}
.wb-panel .wb-column{min-width:0;gap:2px}
.wb-panel .wb-place{min-width:0}
.wb-panel .wb-stage{min-width:0;width:100%}
.wb-panel .wb-wide{width:100%;min-width:0;margin:0}
.wb-panel .wb-auto{width:auto;margin:0}
.wb-panel .wb-button{width:auto}
.wb-panel .wb-choice{width:auto;margin:0 10px 0 0}
.wb-panel .wb-short{width:84px;min-width:56px;margin:0}
.wb-panel .wb-narrow{width:96px;min-width:72px;flex:0 1 auto;margin:0}
.wb-panel .wb-slider{flex:1 1 0%;min-width:60px;margin:0}
.wb-panel .wb-field{flex-flow:row wrap;align-items:center;gap:0 6px;margin:2px 0 4px;min-width:0}
.wb-panel .wb-head{flex:1 1 100%;min-width:0;min-height:24px;align-items:center;gap:6px}
.wb-panel .wb-below{flex:1 1 100%;margin:0;min-width:0}
.wb-panel .wb-unit{float:right;margin-left:6px}
.wb-panel .wb-reset{width:auto;height:24px;line-height:24px}
.wb-panel .wb-away{visibility:hidden}
.wb-panel .wb-gone{display:none}
.wb-panel .wb-growing{flex:1 1 0%;min-width:80px;margin:0}
.wb-panel .wb-path{flex:1 1 120px;width:auto;min-width:0;margin:0}
.wb-panel .wb-nothing{display:flex;flex-direction:column;padding:8px 0;box-sizing:border-box}
.wb-panel .wb-nothing>b{font-size:15px}
.wb-panel .wb-nothing>div{margin:auto;padding:0 24px;text-align:center}
.wb-panel .wb-bar{width:100%;height:14px;margin:0}
.wb-panel .wb-more{width:auto;margin:4px 0}
.wb-panel .wb-count{width:72px;min-width:0;margin:0}
.wb-panel .wb-ranks{width:80px;margin:0}
.wb-panel .wb-file{width:180px;margin:0}
"""
"""The rules of the classes that such widgets are given, for the style sheet of the panels."""


class _Placed(widgets.DOMWidget):  # type: ignore[misc]  # ipywidgets ships no types
    """A widget without a layout.

    Args:
        *arguments: As the widget takes them.
        css: Its classes, with blanks between them.
        **options: As the widget takes them.
    """

    layout = InstanceDict(widgets.Layout, allow_none=True).tag(sync=True, **widgets.widget_serialization)

    def __init__(self, *arguments: Any, css: str = "", **options: Any) -> None:
        super().__init__(*arguments, _dom_classes=tuple(css.split()), **options)

    def present(self, is_there: bool) -> None:
        """Let the widget be seen, or take no room.

        Args:
            is_there: Whether it is seen.
        """
        (self.remove_class if is_there else self.add_class)("wb-gone")

    @property
    def is_present(self) -> bool:
        """Whether the widget is seen."""
        return "wb-gone" not in self._dom_classes


class _Styleless(_Placed):
    """A widget without a layout and a style; arguments as for ``_Placed``."""

    style = InstanceDict(widgets.Style, allow_none=True).tag(sync=True, **widgets.widget_serialization)


class Stack(_Placed, widgets.VBox):  # type: ignore[misc]
    """Widgets below each other."""


class Row(_Placed, widgets.HBox):  # type: ignore[misc]
    """Widgets side by side."""


class Tab(_Placed, widgets.Tab):  # type: ignore[misc]
    """Widgets behind each other, with their titles above."""


class Accordion(_Placed, widgets.Accordion):  # type: ignore[misc]
    """Widgets that unfold beneath their titles."""


class ToggleButtons(_Placed, widgets.ToggleButtons):  # type: ignore[misc]
    """Buttons of which one is chosen; how wide they are is said by their style."""


class Html(_Styleless, widgets.HTML):  # type: ignore[misc]
    """A piece of HTML."""


class Button(_Styleless, widgets.Button):  # type: ignore[misc]
    """A button."""


class FileUpload(_Styleless, widgets.FileUpload):  # type: ignore[misc]
    """A button that takes a file of the reader's computer."""


class Checkbox(_Styleless, widgets.Checkbox):  # type: ignore[misc]
    """A box to tick."""


class Text(_Styleless, widgets.Text):  # type: ignore[misc]
    """A line of text."""


class Textarea(_Styleless, widgets.Textarea):  # type: ignore[misc]
    """Lines of text."""


class BoundedIntText(_Styleless, widgets.BoundedIntText):  # type: ignore[misc]
    """A whole number within bounds."""


class Combobox(_Styleless, widgets.Combobox):  # type: ignore[misc]
    """A line of text with suggestions."""


class Dropdown(_Styleless, widgets.Dropdown):  # type: ignore[misc]
    """A list that folds away."""


class Select(_Styleless, widgets.Select):  # type: ignore[misc]
    """A list that stays."""


class IntSlider(_Styleless, widgets.IntSlider):  # type: ignore[misc]
    """A slider over whole numbers."""


class FloatSlider(_Styleless, widgets.FloatSlider):  # type: ignore[misc]
    """A slider over numbers."""


class FloatLogSlider(_Styleless, widgets.FloatLogSlider):  # type: ignore[misc]
    """A slider over powers."""


class IntProgress(_Styleless, widgets.IntProgress):  # type: ignore[misc]
    """A bar that grows by whole numbers."""


class FloatProgress(_Styleless, widgets.FloatProgress):  # type: ignore[misc]
    """A bar that grows."""
