"""The rule of the dynamic loss scale, on plain numbers: back off on overflow, grow after a streak of finite steps.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740, section 3.2; the sequence of scales is
the one of MindSpore 2.7's ``DynamicLossScaleUpdateCell`` (``mindspore/nn/wrap/loss_scale.py``) with two deliberate
differences: growth stops where the product would leave float32 instead of reaching inf, and the scale may have an
upper bound of its own. Device, host and replay all follow this one rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, Protocol

__all__ = [
    "FLOAT32_MAX",
    "GrowthCeiling",
    "LossScaleRule",
    "ScaleState",
    "checked_bounds",
    "checked_factor",
    "checked_growth_ceiling",
    "checked_init",
    "checked_window",
    "next_scale",
]

FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127
"""Largest finite float32: the scale lives in float32 on the device, so no larger value can be used."""

GrowthCeiling = Literal["finite", "none"]
"""``"finite"`` keeps the scale when growing would leave float32; ``"none"`` lets it become inf, as the reference."""


class LossScaleRule(Protocol):
    """What `next_scale` needs to know; the config section ``loss_scale`` and `ScalePolicy` both fit."""

    @property
    def factor(self) -> float:
        """Divisor on overflow and multiplier on growth, > 1."""
        ...

    @property
    def window(self) -> int:
        """Consecutive finite steps before the scale grows, >= 1."""
        ...

    @property
    def minimum(self) -> float:
        """Lower bound of the scale, > 0."""
        ...

    @property
    def maximum(self) -> float | None:
        """Upper bound of the scale; None for float32's own."""
        ...


@dataclass(frozen=True, slots=True)
class ScaleState:
    """The scale and how long it has held.

    Args:
        scale: Loss scale the next backward pass uses (dimensionless, > 0).
        finite_steps: Finite steps since the scale last overflowed or was due to grow.
    """

    scale: float
    finite_steps: int = 0


def next_scale(
    state: ScaleState, overflowed: bool, rule: LossScaleRule, *, growth_ceiling: GrowthCeiling = "finite"
) -> ScaleState:
    """Return the scale state that follows one step.

    ``s' = max(s / factor, minimum)`` on overflow; ``s' = min(s * factor, maximum)`` on the ``window``-th finite step
    in a row; ``s' = s`` otherwise. A scale that may not grow keeps its value and starts a new streak.

    Args:
        state: Scale and finite steps so far.
        overflowed: Whether any gradient of this step was inf or NaN.
        rule: Factor, window (steps) and bounds; already validated.
        growth_ceiling: What happens where the product leaves float32.

    Returns:
        The state the next step starts from.

    Example:
        >>> from workbench.loss_scale import ScalePolicy
        >>> rule = ScalePolicy(init=1024.0, factor=2.0, window=2)
        >>> next_scale(ScaleState(1024.0, finite_steps=1), False, rule)
        ScaleState(scale=2048.0, finite_steps=0)
        >>> next_scale(ScaleState(1024.0, finite_steps=1), True, rule)
        ScaleState(scale=512.0, finite_steps=0)
    """
    if overflowed:  # forget the streak too: a scale that just failed has earned no growth
        return ScaleState(max(state.scale / rule.factor, rule.minimum))
    if state.finite_steps + 1 < rule.window:
        return ScaleState(state.scale, state.finite_steps + 1)
    grown = state.scale * rule.factor
    if rule.maximum is not None:
        # A scale set above the bound by hand stays where it is: nothing but an overflow may lower it.
        grown = min(grown, max(rule.maximum, state.scale))
    if growth_ceiling == "finite" and grown > FLOAT32_MAX:
        grown = state.scale
    return ScaleState(grown)


def checked_init(name: str, value: object) -> float:
    """Return an initial loss scale as a float.

    Args:
        name: Parameter name for the message.
        value: What the user gave.

    Raises:
        TypeError: When it is no number.
        ValueError: When it does not lie in [1, largest float32].
    """
    number = _real(name, value)
    if not 1.0 <= number <= FLOAT32_MAX:
        raise ValueError(f"`{name}` must lie in [1, {FLOAT32_MAX:.4g}] (float32), got {value!r}")
    return number


def checked_factor(name: str, value: object) -> float:
    """Return a scale factor as a float.

    The reference accepts a factor between 0 and 1, which grows the scale on overflow; that is refused here.

    Args:
        name: Parameter name for the message.
        value: What the user gave.

    Raises:
        TypeError: When it is no number.
        ValueError: When it is not finite or not greater than 1.
    """
    number = _real(name, value)
    if not 1.0 < number < math.inf:
        raise ValueError(
            f"`{name}` must be finite and greater than 1 (the scale is divided by it on overflow), got {value!r}"
        )
    return number


def checked_window(name: str, value: object) -> int:
    """Return a growth window in steps.

    Args:
        name: Parameter name for the message.
        value: What the user gave.

    Raises:
        TypeError: When it is no integer.
        ValueError: When it is smaller than 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer number of steps, got {value!r}")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1 step, got {value!r}")
    return int(value)


def checked_bounds(init: float, minimum: object, maximum: object) -> tuple[float, float | None]:
    """Return the bounds of a loss scale as floats, the upper one None for float32's own.

    Args:
        init: Initial scale, already checked; must lie between the bounds.
        minimum: Lower bound.
        maximum: Upper bound or None.

    Raises:
        TypeError: When a bound is no number.
        ValueError: When the lower bound is not in (0, init] or the upper one is not in [init, largest float32].
    """
    low = _real("minimum", minimum)
    if not 0.0 < low <= init:
        raise ValueError(f"`minimum` must lie in (0, initial scale {init:g}], got {minimum!r}")
    if maximum is None:
        return low, None
    high = _real("maximum", maximum)
    if not init <= high <= FLOAT32_MAX:
        raise ValueError(
            f"`maximum` must lie in [initial scale {init:g}, {FLOAT32_MAX:.4g}] or be None, got {maximum!r}"
        )
    return low, high


def checked_growth_ceiling(value: object) -> GrowthCeiling:
    """Return the growth ceiling.

    Args:
        value: What the user gave.

    Raises:
        ValueError: When it is neither ``"finite"`` nor ``"none"``.
    """
    if value == "finite":
        return "finite"
    if value == "none":
        return "none"
    raise ValueError(f'`growth_ceiling` must be "finite" or "none" (as MindSpore: grow to inf), got {value!r}')


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__} {value!r}")
    return float(value)
