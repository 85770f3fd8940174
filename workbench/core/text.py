"""How values are written for people, wherever they are shown."""

from __future__ import annotations

import math
import unicodedata


def format_number(value: float | None) -> str:
    """Return a number with four digits; an unknown one (NaN, inf or None) as a word."""
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.4g}"


def compact(value: float) -> str:
    """Write a number with four significant digits, never with a trailing point or in needless exponent form."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        return with_spaces(text)
    return f"{value:.3g}"


def with_spaces(number: str) -> str:
    """Set a number's thousands apart by narrow spaces: commas are decimal points to half the world."""
    return number.replace(",", "\u202f")


def format_interval(middle: float | None, low: float | None, high: float | None, unit: str = "") -> str:
    """Return a ratio with its interval, such as ``"1.21 x (1.14 to 1.28)"``; without one where there is none."""
    if middle is None or not math.isfinite(middle):
        return "unknown"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return f"{middle:.2f}{unit}"
    return f"{middle:.2f}{unit} ({low:.2f} to {high:.2f})"


def format_duration(seconds: float) -> str:
    """Return a duration as a person says it: ``"40 s"``, ``"1.5 min"``, ``"3.5 h"``; an unknown one as a word."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90.0:
        return f"{max(seconds, 1.0):.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.2g} min"
    return f"{seconds / 3600.0:.1f} h"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, at most 300 characters; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


def printable(text: str) -> str:
    r"""Return text that is safe on a terminal, whatever file it comes from: what would control one is spelled out.

    Control characters but tab and line feed, overrides of the direction of writing and lone surrogates become escapes
    such as ``\x1b``.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    steers = unicodedata.category(character) in {"Cc", "Cs"} or character in "\u061c\u200e\u200f\u2028\u2029"
    steers = steers or "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return character.encode("unicode_escape").decode("ascii") if steers and character not in "\n\t" else character
