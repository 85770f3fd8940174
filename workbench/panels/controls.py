"""One control per parameter, made from its description: label, input, unit, reset, and a line for what is wrong.

Numbers have a text box that takes anything the configuration takes, and a slider over the search range where there is
one. The box's text goes to the configuration unchecked, whose own sentence is then shown next to the field:
no rule is stated twice.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import ipywidgets as widgets

from workbench.config import ParameterInfo
from workbench.config.errors import shown
from workbench.panels import kit
from workbench.panels.style import error_html, faint, label_html, power_text

_POWER: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:\^|\*\*)\s*(-?\d+)\s*")
_UNSET: Final = "unset"


class _Input(NamedTuple):
    """A widget in which a value is entered: the trait that holds it, how it is shown there, and how it is read."""

    widget: widgets.Widget
    trait: str
    shown: Callable[[Any], Any]
    read: Callable[[Any], Any]


class ParameterControl:
    """A control for one parameter; a first value of None is the default.

    Its widgets are made when they are first asked for: a control in a section that stays folded costs nothing.
    """

    def __init__(self, info: ParameterInfo, value: Any = None) -> None:
        self.info = info
        self._value = info.default if value is None else value
        self._observers: list[Callable[[ParameterControl], object]] = []
        self._setting_thread: int | None = None
        self._lock = threading.RLock()
        self._locked = False
        self.reason = ""
        self._said_elsewhere = False
        self.problem = ""
        self._note = ""
        self._inputs: list[_Input] = []
        self._widget: widgets.VBox | None = None
        # Most controls need neither: they are made when there is something to take back, or to say.
        self._reset: widgets.Button | None = None
        self._below: widgets.HTML | None = None

    @property
    def widget(self) -> widgets.VBox:
        """What to show."""
        with self._lock:
            if self._widget is None:
                info = self.info
                make = _choice_inputs if info.kind in ("bool", "choice") else _text_inputs
                self._inputs = make(info, self._value)
                for entry in self._inputs:
                    entry.widget.observe(self._from_user(entry.read), entry.trait)
                label = kit.Html(label_html(info.title, f"{info.path}: {info.description}", info.unit), css="wb-grow")
                self._head = kit.Row((label,), css="wb-head")
                self._widget = kit.Stack((self._head, *(entry.widget for entry in self._inputs)), css="wb-field")
                self._show(self._value)
                self._set_disabled()
            return self._widget

    def close(self) -> None:
        """Close what was shown; may be called twice, also by the container of the control."""
        if self._widget is not None:
            kit.close_recursively(self._widget)

    @property
    def value(self) -> Any:
        """The value as Python has it; None is unset. Text that is not a number stays text, for the rule to refuse."""
        return self._value

    def set(self, value: Any) -> None:
        """Show a value, None for unset; observers are not called."""
        with self._lock:
            self._value, self.problem = value, ""
            self._show(value)

    @property
    def disabled(self) -> bool:
        """Whether the control cannot be used at present: for a ``reason``, or while work is under way."""
        return self._locked or bool(self.reason)

    def disable(self, reason: str, *, said_elsewhere: bool = False) -> None:
        """Disable the control and show the reason beneath it, if it is not said elsewhere; an empty one enables it."""
        if reason != self.reason:
            self.reason, self._said_elsewhere = reason, said_elsewhere
            self._set_disabled()
            self._show_below()

    def lock(self, locked: bool) -> None:
        """Disable the control without a word while work is under way, or free it again."""
        self._locked = locked
        self._set_disabled()

    def note(self, sentence: str) -> None:
        """Show a line beneath the control, for example what a share means in percent; empty removes it."""
        if sentence != self._note:
            self._note = sentence
            self._show_below()

    def refuse(self, sentence: str) -> None:
        """Show beneath the control what is wrong with what was entered (``problem``); empty removes it."""
        self.problem = sentence
        self._show_below()

    def observe(self, observer: Callable[[ParameterControl], object]) -> None:
        """Have a function called with this control after the user has changed the value."""
        self._observers.append(observer)

    def _from_user(self, read: Callable[[Any], Any]) -> Callable[[Any], None]:
        """Return an observer of a trait that ignores what this control itself sets."""

        def changed(change: Any) -> None:
            if self._setting_thread != threading.get_ident():
                self._take(read(change["new"]))

        return changed

    def _take(self, value: Any) -> None:
        self.set(value)
        for observer in self._observers:
            observer(self)

    def _show(self, value: Any) -> None:
        if self._widget is None:
            return
        self._setting_thread = threading.get_ident()
        try:
            for entry in self._inputs:
                setattr(entry.widget, entry.trait, entry.shown(value))
        finally:
            self._setting_thread = None
        self._offer_reset(value != self.info.default)
        self._show_below()

    def _set_disabled(self) -> None:
        for entry in self._inputs:
            entry.widget.disabled = self.disabled
        if self._reset is not None:
            self._reset.disabled = self.disabled

    def _offer_reset(self, differs: bool) -> None:
        if self._reset is not None:
            (self._reset.remove_class if differs else self._reset.add_class)("wb-away")
        elif differs:
            tooltip = f"Set {self.info.title} back to {_text_of_value(self.info.default)}"
            self._reset = kit.Button(description="Reset", tooltip=tooltip, disabled=self.disabled, css="wb-reset")
            self._reset.on_click(lambda _: self._take(self.info.default))
            self._head.children = (*self._head.children, self._reset)  # behind: what stands there keeps its focus

    def _show_below(self) -> None:
        if self._widget is None:
            return
        lines = [error_html(self.problem)] if self.problem else []
        lines += [faint(line) for line in ("" if self._said_elsewhere else self.reason, self._note) if line]
        below = "".join(f"<div>{line}</div>" for line in lines)
        if self._below is not None:
            self._below.value = below
        elif below:
            self._below = kit.Html(below, css="wb-below")
            self._widget.children = (*self._widget.children, self._below)


def _choice_inputs(info: ParameterInfo, value: Any) -> list[_Input]:
    """Return a list of choices; a switch is a list of yes and no."""
    options = [*([None] if info.optional else []), *info.choices]

    def index_of(value: Any) -> int | None:
        # Compared with their kinds: false and 0 are equal.
        return next((i for i, one in enumerate(options) if one == value and type(one) is type(value)), None)

    # Texts only, found by their position: the widget takes a value of None for no choice at all.
    texts = [named(info, option) for option in options]
    entry = kit.Dropdown(options=texts, index=index_of(value), tooltip=_name_of(info), css="wb-wide")
    return [_Input(entry, "index", index_of, lambda index: None if index is None else options[index])]


def _text_inputs(info: ParameterInfo, value: Any) -> list[_Input]:
    """Return a text box; for numbers with a search range a slider above it."""
    css, empty = "wb-narrow" if info.kind in ("int", "float") else "wb-wide", _UNSET if info.optional else ""
    box = kit.text_box(entry_text(value), _name_of(info), css=css, placeholder=empty)
    inputs = [_Input(box, "value", entry_text, lambda text: parsed(text, info.kind, optional=info.optional))]
    slider = _slider(info, value)
    if slider is None:
        return inputs

    read = round if info.kind == "int" else _rounded

    def place(value: Any) -> Any:
        if not isinstance(value, (int, float)) or value == read(slider.value):
            return slider.value  # rounded beneath a finger, it would jump back when the answer comes late
        return _on_slider(info, value)

    return [_Input(slider, "value", place, read), *inputs]


def _name_of(info: ParameterInfo) -> str:
    """Return an input's name for screen readers and tooltips: its title first."""
    return f"{info.title}: {info.description}"


def text_control(path: str, title: str, help_text: str, default: Any, **more: Any) -> ParameterControl:
    """Return a control, by default for text, of something that is not a parameter of the configuration."""
    about = {"path": path, "title": title, "description": help_text, "default": default, "kind": "str", **more}
    return ParameterControl(ParameterInfo(**about))


def count_control(
    path: str, title: str, help_text: str, default: int | None, *, least: int = 1, **more: Any
) -> ParameterControl:
    """Return the control of a whole number that is not a parameter of the configuration."""
    rule = f"be a whole number, {least} or more"
    control = text_control(path, title, help_text, default, kind="int", low=least, rule=rule, **more)
    control.observe(is_usable_count)
    return control


def is_usable_count(control: ParameterControl) -> bool:
    """Return whether the value of such a control can be used, and show beneath it if it cannot."""
    value, info = control.value, control.info
    if (value is None and info.optional) or (isinstance(value, int) and (info.low or 0) <= value < 2**63):
        return True
    control.refuse(f"`{info.path}` must {info.rule}, got {shown(value)}")
    return False


def parsed(text: str, kind: str, *, optional: bool) -> Any:
    """Return what a text means for a kind of parameter; an empty one unsets it where it is optional.

    Numbers may be written 65536, 6.5e4, 2^16 or 2**16, lists with commas. Any other text is returned unchanged, for the
    rule of the parameter to refuse.
    """
    text = text.strip()
    if not text and optional:
        return None
    if kind == "int":
        number = _number(text)
        return int(number) if isinstance(number, float) and number.is_integer() else number
    if kind == "float":
        number = _number(text)
        return float(number) if isinstance(number, int) and abs(number) < 2**63 else number
    if kind == "list":
        return [_number(part.strip()) for part in text.strip("[]() ").split(",") if part.strip()]
    return text


def number_text(value: Any) -> str:
    """Return a number, a list of numbers, a switch or text as a person types it; large powers of two as such."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if power := power_text(value):
            return power
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:.0f}"
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        return shown(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(number_text(item) for item in value)
    return str(value)


def entry_text(value: Any) -> str:
    """Return what a text box shows of a value; nothing for None."""
    return "" if value is None else number_text(value)


def named(info: ParameterInfo, choice: Any) -> str:
    """Return one of a parameter's choices by what it does, else as a person types it."""
    return info.names.get(choice) or _text_of_value(choice)


def _text_of_value(value: Any) -> str:
    return _UNSET if value is None else number_text(value)


def _slider(info: ParameterInfo, value: Any) -> widgets.Widget | None:
    """Return a slider over the search range of a number, showing a value; None where there is no range."""
    if info.kind not in ("int", "float") or info.low is None or info.high is None:
        return None
    common: dict[str, Any] = {
        "value": _on_slider(info, value) if isinstance(value, (int, float)) else info.low,
        "continuous_update": False,
        "readout": False,
        "css": "wb-slider",
        "tooltip": f"{_name_of(info)} The slider covers {number_text(info.low)} to {number_text(info.high)}; the box "
        f"takes more: it must {info.rule}.",
    }
    if info.log and info.low > 0:
        low, high = math.log2(info.low), math.log2(info.high)
        # Steps of an octave where the range is made of powers of two, else about a hundred.
        step = 1.0 if low.is_integer() and high.is_integer() and high - low >= 8 else (high - low) / 100
        return kit.FloatLogSlider(base=2, min=low, max=high, step=step, **common)
    if info.kind == "int":
        common["value"] = int(common["value"])
        return kit.IntSlider(min=int(info.low), max=int(info.high), step=int(info.step or 1), **common)
    step = info.step or 10.0 ** math.floor(math.log10((info.high - info.low) / 50))
    return kit.FloatSlider(min=info.low, max=info.high, step=step, **common)


def _on_slider(info: ParameterInfo, value: float) -> float:
    """Return the slider's position for a value: an end for what is beyond it, the lower one for NaN."""
    low, high = info.low or 0, info.high or 0
    return min(value, high) if value >= low else low


def _rounded(value: float) -> float:
    """Return a slider's value with the three digits a person sets by hand; powers of two stay exact."""
    mantissa, _ = math.frexp(value)
    return value if mantissa == 0.5 else float(f"{value:.3g}")


def _number(text: str) -> Any:
    found = _POWER.fullmatch(text)
    if found:
        try:
            return float(found.group(1)) ** int(found.group(2))
        except OverflowError:
            return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
