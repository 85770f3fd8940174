"""Numbers as a person reads them in figures and tables: percentages, powers of two, counts."""

from __future__ import annotations

import html
import math
import re

from workbench.core.metric_scale import MetricScale as MetricScale
from workbench.core.text import compact as compact
from workbench.core.text import with_spaces

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


def counted(n: int, noun: str, plural: str = "") -> str:
    """Write ``1 step``, ``2 steps``, ``12 000 steps``."""
    return f"{grouped(n)} {noun if n == 1 else plural or noun + 's'}"


def grouped(value: float) -> str:
    """Write a number without decimals, its thousands apart: ``12 000``."""
    return with_spaces(f"{value:,.0f}")


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
