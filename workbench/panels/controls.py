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
from workbench.panels.panel import close_recursively, text_of
from workbench.panels.style import error_html, faint

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

    @property
    def widget(self) -> widgets.VBox:
        """What to show."""
        with self._lock:
            if self._widget is None:
                self._inputs = self._make_inputs()
                self._label = text_of(_label_html(self.info), grow=True)
                self._reset = widgets.Button(
                    description="Reset",
                    tooltip=f"Set {self.info.title} back to {self.text_of_value(self.info.default)}",
                    layout=widgets.Layout(width="auto", height="24px", visibility="hidden"),
                )
                self._reset.on_click(lambda _: self._take(self.info.default))
                self._below = text_of("")
                unit = (text_of(faint(self.info.unit)),) if self.info.unit else ()
                head = widgets.HBox([self._label, *unit, self._reset], layout=_TIGHT_ROW)
                self._widget = widgets.VBox([head, *self._rows(), self._below], layout=_FIELD)
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
        for entry in (*self._inputs, self._reset):
            entry.disabled = self.disabled

    @abstractmethod
    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        """Return the widgets in which the user enters a value."""

    def _rows(self) -> tuple[widgets.Widget, ...]:
        return self._inputs

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
            differs = value != self.info.default
            self._reset.layout.visibility = "visible" if differs else "hidden"
            self._tell()

    def _tell(self) -> None:
        if self._widget is None:
            return
        lines = [error_html(self._problem)] if self._problem else []
        if self.reason:
            lines.append(faint(self.reason))
        if self._note:
            lines.append(faint(self._note))
        self._below.value = "".join(f"<div>{line}</div>" for line in lines)

    def __repr__(self) -> str:
        return f"<control of {self.info.path}: {self.text_of_value(self._value)}>"


class _ChoiceControl(ParameterControl):
    """A list of choices; a switch is a list of yes and no."""

    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        self._options = [*([None] if self.info.optional else []), *self.info.choices]
        # Texts only, found by their position: the widget takes a value of None for no choice at all.
        entry = widgets.Dropdown(
            options=[self.text_of_value(option) for option in self._options],
            layout=_WIDE,
            tooltip=self.info.description,
        )
        entry.observe(self._from_user(lambda index: None if index is None else self._options[index]), "index")
        return (entry,)

    def _show_in_inputs(self, value: Any) -> None:
        # Compared with their kinds: false and 0 are equal.
        same = [i for i, option in enumerate(self._options) if option == value and type(option) is type(value)]
        self._inputs[0].index = same[0] if same else None


class _TextControl(ParameterControl):
    """A text box; for numbers with a search range a slider stands above it."""

    def _make_inputs(self) -> tuple[widgets.Widget, ...]:
        kind, optional = self.info.kind, self.info.optional
        self._box = widgets.Text(
            continuous_update=False,
            placeholder=_UNSET if optional else "",
            tooltip=self.info.description,
            layout=_WIDE if self._is_plain_text else _NARROW,
        )
        self._box.observe(self._from_user(lambda text: parsed(text, kind, optional=optional)), "value")
        self._slider = None if self._is_plain_text else _slider(self.info)
        if self._slider is None:
            return (self._box,)
        whole = kind == "int"
        self._slider.observe(self._from_user(lambda x: round(x) if whole else _rounded(x)), "value")
        return self._slider, self._box

    @property
    def _is_plain_text(self) -> bool:
        return self.info.kind not in ("int", "float")

    def _rows(self) -> tuple[widgets.Widget, ...]:
        return (widgets.HBox(self._inputs, layout=_TIGHT_ROW),)

    def _show_in_inputs(self, value: Any) -> None:
        self._box.value = self._entered(value)
        if self._slider is not None and isinstance(value, (int, float)):
            low, high = self.info.low or 0, self.info.high or 0
            self._slider.value = min(value, high) if value >= low else low  # low for NaN, too

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


_WIDE: Final[dict[str, str]] = {"width": "100%", "min_width": "0", "margin": "0"}
_NARROW: Final[dict[str, str]] = {"width": "96px", "min_width": "72px", "flex": "0 1 auto", "margin": "0"}
_SLIDER: Final[dict[str, str]] = {"flex": "1 1 0%", "min_width": "60px", "margin": "0"}
_TIGHT_ROW: Final[dict[str, str]] = {"align_items": "center", "grid_gap": "6px", "width": "100%"}
_FIELD: Final[dict[str, str]] = {"margin": "2px 0 4px", "min_width": "0"}


def _slider(info: ParameterInfo) -> widgets.Widget | None:
    """Return a slider over the search range; None where there is no range."""
    if info.low is None or info.high is None:
        return None
    common: dict[str, Any] = {
        "continuous_update": False,
        "readout": False,
        "layout": _SLIDER,
        "tooltip": f"{info.description} The slider covers {number_text(info.low)} to {number_text(info.high)}; the box "
        f"takes more: it must {info.rule}.",
    }
    if info.log and info.low > 0:
        low, high = math.log2(info.low), math.log2(info.high)
        return widgets.FloatLogSlider(
            value=info.low, base=2, min=low, max=high, step=_log_step(info, high - low), **common
        )
    if info.kind == "int":
        return widgets.IntSlider(
            value=int(info.low), min=int(info.low), max=int(info.high), step=int(info.step or 1), **common
        )
    step = info.step or 10.0 ** math.floor(math.log10((info.high - info.low) / 50))
    return widgets.FloatSlider(value=info.low, min=info.low, max=info.high, step=step, **common)


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
    return f'<span class="wb-label" title="{tip}">{html.escape(info.title)}</span>'
