"""One control per parameter, made from its description: label, input, unit, reset, and a line for what is wrong.

Numbers have a text box that takes anything the configuration takes, and a slider over the search range where there is
one. What the box holds is handed to the configuration as it is, so that its own sentence stands beside the field:
no rule is stated twice.
"""

from __future__ import annotations

import html
import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import ipywidgets as widgets

from workbench.config import ParameterInfo
from workbench.config.errors import shown
from workbench.panels.panel import close_recursively
from workbench.panels.placed_widgets import (
    Button,
    Dropdown,
    FloatLogSlider,
    FloatSlider,
    Html,
    IntSlider,
    Row,
    Stack,
    Text,
)
from workbench.panels.style import error_html, faint, words

__all__ = ["ParameterControl", "control_for", "number_text", "parsed"]

_POWER: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:\^|\*\*)\s*(-?\d+)\s*")
_UNSET: Final = "unset"


class ParameterControl(ABC):
    """A control for one parameter.

    Its widgets are made when somebody asks for them: a control in a section that nobody unfolds costs nothing.

    Args:
        info: The parameter.
        value: First value; the default one if None.

    Attributes:
        info: The parameter.
    """

    def __init__(self, info: ParameterInfo, value: Any = None) -> None:
        self.info = info
        self._value = info.default if value is None else value
        self._observers: list[Callable[[ParameterControl], None]] = []
        self._setting_thread: int | None = None
        self._lock = threading.RLock()
        self.reason = ""
        self._locked = False
        self._note = ""
        self._problem = ""
        self._widget: widgets.VBox | None = None
        # Most controls need neither: they are made when there is something to take back, or to say.
        self._reset: widgets.Button | None = None
        self._below: widgets.HTML | None = None

    @property
    def widget(self) -> widgets.VBox:
        """What to show."""
        with self._lock:
            if self._widget is None:
                self._inputs = self._make_inputs()
                self._head = Row((Html(_label_html(self.info), css="wb-grow"),), css="wb-head")
                self._widget = Stack((self._head, *self._inputs), css="wb-field")
                self._show(self._value)
                self._set_disabled()
            return self._widget

    def close(self) -> None:
        """Close what was shown; may be called twice, and by whom the control stands in, too."""
        if self._widget is not None:
            close_recursively(self._widget)

    @property
    def value(self) -> Any:
        """The value as Python has it; None is unset. Text that is no number stays text, for the rule to refuse."""
        return self._value

    def set(self, value: Any) -> None:
        """Show a value; observers are not called.

        Args:
            value: The value; None is unset.
        """
        with self._lock:
            self._value = value
            self._problem = ""
            self._show(value)

    @property
    def disabled(self) -> bool:
        """Whether the control cannot be used at present; ``reason`` says why, where it is not that work goes on."""
        return self._locked or bool(self.reason)

    def disable(self, reason: str) -> None:
        """Enable the control, or disable it for a reason that is shown.

        Args:
            reason: One sentence; empty enables it.
        """
        if reason == self.reason:
            return
        self.reason = reason
        self._set_disabled()
        self._tell()

    def lock(self, locked: bool) -> None:
        """Disable the control without a word while work is under way, or free it again.

        Args:
            locked: Whether it is disabled, too, besides for a reason.
        """
        self._locked = locked
        self._set_disabled()

    def note(self, sentence: str) -> None:
        """Show a line beneath the control, for example what a share means in percent.

        Args:
            sentence: Plain text; empty removes it.
        """
        if sentence != self._note:
            self._note = sentence
            self._tell()

    def refuse(self, sentence: str) -> None:
        """Say beside the field what is wrong with what was entered.

        Args:
            sentence: The configuration's sentence.
        """
        self._problem = sentence
        self._tell()

    @property
    def problem(self) -> str:
        """What is wrong with what was entered; empty when nothing is."""
        return self._problem

    def observe(self, observer: Callable[[ParameterControl], None]) -> None:
        """Have a function called after the user has changed the value.

        Args:
            observer: Called with this control.
        """
        self._observers.append(observer)

    def text_of_value(self, value: Any) -> str:
        """Return a value as the control writes it.

        Args:
            value: A value of this parameter.
        """
        return _UNSET if value is None else _choice_text(value)

    # -- for the kinds of controls -------------------------------------------------------------------------------------

    def _set_disabled(self) -> None:
        if self._widget is None:
            return
        for entry in (*self._inputs, *([self._reset] if self._reset is not None else [])):
            entry.disabled = self.disabled

    @abstractmethod
    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        """Return the widgets in which the user enters a value; they show the present one already."""

    @abstractmethod
    def _show_in_inputs(self, value: Any) -> None:
        """Let the widgets show a value."""

    def _from_user(self, read: Callable[[Any], Any]) -> Callable[[Any], None]:
        """Return an observer of a trait that ignores what this control itself sets."""

        def changed(change: Any) -> None:
            if self._setting_thread != threading.get_ident():
                self._take(read(change["new"]))

        return changed

    def _take(self, value: Any) -> None:
        with self._lock:
            self._value = value
            self._problem = ""
            self._show(value)
        for observer in self._observers:
            observer(self)

    def _show(self, value: Any) -> None:
        with self._lock:
            if self._widget is None:
                return
            self._setting_thread = threading.get_ident()
            try:
                self._show_in_inputs(value)
            finally:
                self._setting_thread = None
            self._offer_reset(value != self.info.default)
            self._tell()

    def _offer_reset(self, differs: bool) -> None:
        if self._reset is not None:
            (self._reset.remove_class if differs else self._reset.add_class)("wb-away")
        elif differs:
            self._reset = Button(
                description="Reset",
                tooltip=f"Set {self.info.title} back to {self.text_of_value(self.info.default)}",
                disabled=self.disabled,
                css="wb-reset",
            )
            self._reset.on_click(lambda _: self._take(self.info.default))
            self._head.children = (*self._head.children, self._reset)  # behind: what stands there keeps its focus

    def _tell(self) -> None:
        if self._widget is None:
            return
        lines = [error_html(self._problem)] if self._problem else []
        if self.reason:
            lines.append(faint(self.reason))
        if self._note:
            lines.append(faint(self._note))
        told = "".join(f"<div>{line}</div>" for line in lines)
        if self._below is not None:
            self._below.value = told
        elif told:
            self._below = Html(told, css="wb-below")
            self._widget.children = (*self._widget.children, self._below)

    def __repr__(self) -> str:
        return f"<control of {self.info.path}: {self.text_of_value(self._value)}>"


class _ChoiceControl(ParameterControl):
    """A list of choices; a switch is a list of yes and no."""

    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        self._options = [*([None] if self.info.optional else []), *self.info.choices]
        # Texts only, found by their position: the widget takes a value of None for no choice at all.
        entry = Dropdown(
            options=[self.text_of_value(option) for option in self._options],
            index=self._index_of(self._value),
            tooltip=self.info.description,
            css="wb-wide",
        )
        entry.observe(self._from_user(lambda index: None if index is None else self._options[index]), "index")
        return (entry,)

    def _show_in_inputs(self, value: Any) -> None:
        self._inputs[0].index = self._index_of(value)

    def _index_of(self, value: Any) -> int | None:
        # Compared with their kinds: false and 0 are equal.
        return next((i for i, one in enumerate(self._options) if one == value and type(one) is type(value)), None)


class _TextControl(ParameterControl):
    """A text box; for numbers with a search range a slider stands above it."""

    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        kind, optional = self.info.kind, self.info.optional
        self._box = Text(
            self._entered(self._value),
            continuous_update=False,
            placeholder=_UNSET if optional else "",
            tooltip=self.info.description,
            css="wb-wide" if self._is_plain_text else "wb-narrow",
        )
        self._box.observe(self._from_user(lambda text: parsed(text, kind, optional=optional)), "value")
        self._slider = None if self._is_plain_text else _slider(self.info, self._value)
        if self._slider is None:
            return (self._box,)
        whole = kind == "int"
        self._slider.observe(self._from_user(lambda x: round(x) if whole else _rounded(x)), "value")
        return self._slider, self._box

    @property
    def _is_plain_text(self) -> bool:
        return self.info.kind not in ("int", "float")

    def _show_in_inputs(self, value: Any) -> None:
        self._box.value = self._entered(value)
        if self._slider is not None and isinstance(value, (int, float)):
            self._slider.value = _on_slider(self.info, value)

    def _entered(self, value: Any) -> str:
        return "" if value is None else number_text(value)

    def text_of_value(self, value: Any) -> str:
        return _UNSET if value is None else number_text(value)


def control_for(info: ParameterInfo, value: Any = None) -> ParameterControl:
    """Return the control that fits a parameter.

    Args:
        info: The parameter, from ``config.describe_parameters()``.
        value: First value; None is the default one.
    """
    return (_ChoiceControl if info.kind in ("bool", "choice") else _TextControl)(info, value)


def parsed(text: str, kind: str, *, optional: bool) -> Any:
    """Return what a text means for a kind of parameter.

    Args:
        text: As typed; numbers may be written 65536, 6.5e4, 2^16 or 2**16, lists with commas.
        kind: Kind of parameter (``ParameterInfo.kind``).
        optional: Whether an empty text means unset.

    Returns:
        The value; text that is no such number is returned as it is, for the rule of the parameter to refuse.
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
    """Return a value as a person types it.

    Args:
        value: A number, a list of numbers, or text.
    """
    if isinstance(value, bool):
        return _choice_text(value)
    if isinstance(value, float):
        return (
            f"{value:.0f}"
            if value.is_integer() and abs(value) < 1e15
            else f"{value:g}"
            if _is_short(value)
            else repr(value)
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        return shown(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(number_text(item) for item in value)
    return str(value)


def _slider(info: ParameterInfo, value: Any) -> widgets.Widget | None:
    """Return a slider over the search range that shows a value; None where there is no range."""
    if info.low is None or info.high is None:
        return None
    common: dict[str, Any] = {
        "value": _on_slider(info, value) if isinstance(value, (int, float)) else info.low,
        "continuous_update": False,
        "readout": False,
        "css": "wb-slider",
        "tooltip": f"{info.description} The slider covers {number_text(info.low)} to {number_text(info.high)}; the box "
        f"takes more: it must {info.rule}.",
    }
    if info.log and info.low > 0:
        low, high = math.log2(info.low), math.log2(info.high)
        return FloatLogSlider(base=2, min=low, max=high, step=_log_step(info, high - low), **common)
    if info.kind == "int":
        common["value"] = int(common["value"])
        return IntSlider(min=int(info.low), max=int(info.high), step=int(info.step or 1), **common)
    step = info.step or 10.0 ** math.floor(math.log10((info.high - info.low) / 50))
    return FloatSlider(min=info.low, max=info.high, step=step, **common)


def _on_slider(info: ParameterInfo, value: float) -> float:
    """Return where the slider stands for a value: at an end for what lies beyond it, at the lower one for NaN."""
    low, high = info.low or 0, info.high or 0
    return min(value, high) if value >= low else low


def _log_step(info: ParameterInfo, octaves: float) -> float:
    """Return steps of an octave where the range is made of powers of two, else about a hundred steps."""
    ends = [math.log2(end) for end in (info.low or 1, info.high or 1)]
    powers = all(end.is_integer() for end in ends) and octaves >= 8
    return 1.0 if powers else octaves / 100


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


def _is_short(value: float) -> bool:
    return float(f"{value:g}") == value


def _choice_text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _label_html(info: ParameterInfo) -> str:
    tip = html.escape(f"{info.path}: {info.description}", quote=True)
    unit = f'<span class="wb-faint wb-unit">{words(info.unit)}</span>' if info.unit else ""
    return f'<span class="wb-label" title="{tip}">{html.escape(info.title)}</span>{unit}'
