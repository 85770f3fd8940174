"""Arguments checked at the border: numbers, counts and switches, each refused with a sentence that names it."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from typing import Any


def checked_number(
    name: str,
    value: Any,
    *,
    least: float = 0.0,
    above: float | None = None,
    below: float = math.inf,
    kind: type[Any] = Real,
) -> float:
    """Return a finite number as a float: at least ``least``, or above ``above`` where given, and below ``below``."""
    if isinstance(value, bool) or not isinstance(value, kind):
        what = "float" if kind is float else "number"
        raise TypeError(f"`{name}` must be a {what}, got {type(value).__name__} {value!r}")
    number, low = float(value), least if above is None else above
    if not ((number >= low if above is None else number > low) and number < below):  # NaN fails, too
        if below < math.inf:
            rule = f"lie in {'[' if above is None else '('}{low:g}, {below:g})"
        else:
            rule = f"be finite and {'at least' if above is None else 'above'} {low:g}"
        raise ValueError(f"`{name}` must {rule}, got {value!r}")
    return number


def checked_count(name: str, value: Any, least: int | None = 1, *, kind: str = "a whole number") -> int:
    """Return a whole number, of at least ``least`` where that is given; ``kind`` is what messages call it.

    A TypeError if it is not a whole number, a ValueError if it is smaller, or too large for 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be {kind}, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"`{name}` must fit into 64 bits, got {value}")
    return number


def seconds_from(variable: str, default: float, *, or_zero: bool = False) -> float:
    """Return the seconds that an environment variable sets, above 0 (or 0 where that is allowed), or the default."""
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not (0.0 < seconds < 1e9 or (or_zero and seconds == 0.0)):
        rule = "0 or more" if or_zero else "above 0"
        raise ValueError(f"{variable} must be a number of seconds {rule}, got {text!r}")
    return seconds


def checked_switch(name: str, value: Any) -> bool:
    """Return a bool; anything else, such as 1, is a TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be a bool, got {type(value).__name__} {value!r}")
    return value
