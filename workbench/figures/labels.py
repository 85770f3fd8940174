"""Numbers as a person reads them: percentages, powers of two, counts, and a metric in its own unit."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass

from workbench.core.records import StudyResult

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscripted(text: str) -> str:
    """Write powers of two as people do: ``2^13`` becomes ``2¹³``, in any text."""
    return re.sub(r"(?<![\w.])2\^(-?\d+)", lambda found: "2" + found.group(1).translate(_SUPERSCRIPTS), text)


def plain(text: str) -> str:
    """Make a user's text safe in plotly text and hover templates, which understand some HTML and ``%{...}``."""
    return html.escape(superscripted(text), quote=False).replace("%{", "%&#123;")


def unmarked(text: str) -> str:
    """Return plotly text as plain text: line breaks as spaces, powers as ``2^19``, other marks left out."""
    spaced = re.sub(r"<br ?/?>", " ", text).replace("<sup>", "^")
    return html.unescape(re.sub(r"<[^<>]*>", "", spaced)).replace("\u2212", "-")


def wrapped(text: str, width: int) -> list[str]:
    """Break plotly text at its spaces into lines of at most ``width`` visible characters; a longer word stays whole."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and len(unmarked(f"{lines[-1]} {word}")) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def percent(share: float) -> str:
    """Write a share in [0, 1] as a percentage with two or three significant digits; an unknown one in a word."""
    if not math.isfinite(share):
        return "unknown"
    value = 100.0 * share
    if value != 0.0 and abs(value) < 0.01:
        return "less than 0.01 %"
    digits = f"{value:.1f}" if abs(value) >= 1.0 else f"{value:.2f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} %"


def compact(value: float) -> str:
    """Write a number with four significant digits, never with a trailing point or in needless exponent form."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        return _with_spaces(text)
    return f"{value:.3g}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """Write ``1 step``, ``2 steps``, ``12 000 steps``."""
    return f"{grouped(n)} {noun if n == 1 else plural or noun + 's'}"


def grouped(value: float) -> str:
    """Write a number without decimals, its thousands apart: ``12 000``."""
    return _with_spaces(f"{value:,.0f}")


def times(n: int) -> str:
    """Write ``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(n) or counted(n, "time")


def sentence(message: str) -> str:
    """Write the message of an event, which begins in lower case, as a sentence of plotly text."""
    return plain(f"{message[:1].upper()}{message[1:]}.")


def power_of_two(exponent: float) -> str:
    """Write 2**exponent as plotly text; non-integers keep one decimal."""
    shown = f"{exponent:.0f}" if float(exponent).is_integer() else f"{exponent:.1f}"
    return f"2<sup>{shown.replace('-', '−')}</sup>"


def power_ticks(low: float, high: float, most: int = 9) -> tuple[list[float], list[str]]:
    """Return tick positions (integer exponents) and texts for an axis of exponents from low to high."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [], []
    first, last = math.floor(low), math.ceil(high)
    stride = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if (last - first) / s < most)
    positions = [float(e) for e in range(first - first % stride, last + stride, stride)]
    return positions, [power_of_two(e) for e in positions]


def _with_spaces(number: str) -> str:
    return number.replace(",", "\u202f")  # a narrow space: commas are decimal points to half the world


@dataclass(frozen=True, slots=True)
class MetricScale:
    """How a task's metric is written: its name, its unit, and which way is better."""

    name: str  # for example "accuracy"
    # "%", "bits per byte", ...; "share" for a number in [0, 1] that people read in percent, as are accuracies without
    # a unit; else a bare number.
    unit: str = ""
    higher_is_better: bool = True

    @classmethod
    def of(cls, study: StudyResult) -> MetricScale:
        """Return how the metric of a study is written."""
        return cls(study.metric_name, higher_is_better=study.higher_is_better)

    @property
    def is_share(self) -> bool:
        """Whether values are shares in [0, 1], shown in percent."""
        return self.unit in {"share", "fraction"} or (not self.unit and "accuracy" in self.name.lower())

    @property
    def factor(self) -> float:
        """What a value is multiplied by before it is shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def shown_unit(self) -> str:
        """Unit of the shown value; may be empty."""
        return "%" if self.is_share else self.unit

    @property
    def title(self) -> str:
        """Axis title: name and unit."""
        name = self.name[:1].upper() + self.name[1:]
        return f"{name} ({self.shown_unit})" if self.shown_unit else name

    def value_text(self, value: float) -> str:
        """Write a metric, for example ``97.3 %`` or ``1.82 bits per byte``."""
        if not math.isfinite(value):
            return "unknown"
        digits = f"{value * self.factor:.2f}" if self.shown_unit == "%" else compact(value)
        return f"{digits} {self.shown_unit}".strip()

    def difference_text(self, difference: float) -> str:
        """Write a difference of two metrics; percentages differ by points, never by percent."""
        if not math.isfinite(difference):
            return "unknown"
        if self.shown_unit != "%":
            return f"{compact(difference)} {self.shown_unit}".strip()
        text = f"{difference * self.factor:.2f}".rstrip("0").rstrip(".")
        text = "0" if text in {"-0", ""} else text
        return f"{text} point" if text in {"1", "-1"} else f"{text} points"
