"""The rule of the dynamic loss scale: back off on overflow, grow after a streak of finite steps.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740, section 3.2; the sequence of scales is
the one of MindSpore 2.7's ``DynamicLossScaleUpdateCell`` (``mindspore/nn/wrap/loss_scale.py``) with two deliberate
differences: growth stops where the product would leave float32 instead of reaching inf, and the scale may have an
upper bound of its own.

`next_scales` moves a vector of scales on the host or on a device, with the same bits.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import checked_count, checked_number

FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127
"""Largest finite float32: the scale lives in float32 on the device, so no larger value can be used."""

GrowthCeiling = Literal["finite", "none"]
"""``"finite"`` keeps the scale when growing would leave float32; ``"none"`` lets it become inf, as the reference."""


class LossScaleRule(Protocol):
    """What `next_scale` needs to know; the config section ``loss_scale`` and `ScalePolicy` both fit."""

    @property
    def factor(self) -> float:
        """Divisor on overflow and multiplier on growth, > 1."""

    @property
    def window(self) -> int:
        """Consecutive finite steps before the scale grows, >= 1."""

    @property
    def minimum(self) -> float:
        """Lower bound of the scale, > 0."""

    @property
    def maximum(self) -> float | None:
        """Upper bound of the scale; None for float32's own."""


@dataclass(frozen=True, slots=True)
class ScaleState:
    """The scale that the next backward pass uses, > 0, and the finite steps since it overflowed or was due to grow."""

    scale: float
    finite_steps: int = 0


def next_scales(
    scales: Any,
    finite_steps: Any,
    overflowed: Any,
    *,
    factor: Any,
    window: Any,
    minimum: Any,
    maximum: Any = None,
    growth_ceiling: GrowthCeiling = "finite",
    reduce_ratio: float | None = None,
) -> tuple[Any, Any]:
    """Return the scales that follow one step, and whether each streak starts over.

    ``s' = max(s / factor, minimum)`` on overflow, or ``max(s * reduce_ratio, minimum)`` where a ratio in (0, 1) is
    given; ``s' = min(s * factor, maximum)`` on the ``window``-th finite step in a row; ``s' = s`` otherwise. A scale
    that may not grow keeps its value and starts a new streak.

    Arguments are numbers, numpy arrays ``[n]``, or tensors of one shape ``[]`` or ``[n]`` (with bounds that may be
    numbers), floats of one type, float32 or float64, in which all is computed; no tensor's value is waited for. Finite
    steps are those since the scale last overflowed or was due to grow, this one included.
    """
    on_device = isinstance(scales, Tensor)
    library: Any = torch if on_device else np
    due = finite_steps >= window
    lowered = scales / factor if reduce_ratio is None else scales * reduce_ratio
    with contextlib.nullcontext() if on_device else np.errstate(over="ignore"):
        grown = scales * factor
    if maximum is not None:
        # A scale set above the bound by hand stays where it is: nothing but an overflow may lower it.
        grown = library.minimum(grown, _at_least(scales, maximum))
    grows = due if growth_ceiling == "none" else due & (grown <= FLOAT32_MAX)
    # A scale that overflows on the very step on which it was due has earned no growth.
    kept = library.where(grows, grown, scales)
    return library.where(overflowed, _at_least(lowered, minimum), kept), overflowed | due


def _at_least(values: Any, bound: Any) -> Any:
    if not isinstance(values, Tensor):
        return np.maximum(values, bound)
    return torch.maximum(values, bound) if isinstance(bound, Tensor) else values.clamp(min=bound)


def next_scale(
    state: ScaleState, overflowed: bool, rule: LossScaleRule, *, growth_ceiling: GrowthCeiling = "finite"
) -> ScaleState:
    """Return the scale state that follows one step: `next_scales` for a single scale in float64, by a valid rule.

    Example:
        >>> from workbench.loss_scale import ScalePolicy
        >>> rule = ScalePolicy(init=1024.0, factor=2.0, window=2)
        >>> next_scale(ScaleState(1024.0, finite_steps=1), False, rule)
        ScaleState(scale=2048.0, finite_steps=0)
        >>> next_scale(ScaleState(1024.0, finite_steps=1), True, rule)
        ScaleState(scale=512.0, finite_steps=0)
    """
    counted = state.finite_steps + 1
    if not overflowed and counted < rule.window:  # as on most steps, and ten times as fast as asking
        return ScaleState(state.scale, counted)
    values = {name: getattr(rule, name) for name in ("factor", "window", "minimum", "maximum")}
    scales, _ = next_scales(state.scale, counted, overflowed, growth_ceiling=growth_ceiling, **values)
    return ScaleState(float(scales))


def checked_init(name: str, value: object, *, above: float | None = None) -> float:
    """Return an initial loss scale as a float: at least 1, or above ``above`` where given, and within float32."""
    number = checked_number(name, value, least=1.0, above=above)
    if number > FLOAT32_MAX:
        raise ValueError(f"`{name}` must be at most {FLOAT32_MAX:.4g} (float32), got {value!r}")
    return number


def checked_window(name: str, value: object) -> int:
    """Return a growth window in steps, at least 1."""
    return checked_count(name, value, kind="a whole number of steps")


def checked_bounds(init: float, minimum: object, maximum: object) -> tuple[float, float | None]:
    """Return the bounds of a loss scale, which must enclose the initial one; the upper one None for float32's own."""
    low = checked_number("minimum", minimum, above=0.0)
    if low > init:
        raise ValueError(f"`minimum` must lie in (0, initial scale {init:g}], got {minimum!r}")
    if maximum is None:
        return low, None
    high = checked_number("maximum", maximum)
    if not init <= high <= FLOAT32_MAX:
        raise ValueError(
            f"`maximum` must lie in [initial scale {init:g}, {FLOAT32_MAX:.4g}] or be None, got {maximum!r}"
        )
    return low, high


def checked_growth_ceiling(value: Any) -> GrowthCeiling:
    """Return the growth ceiling, ``"finite"`` or ``"none"``."""
    if value not in ("finite", "none"):
        raise ValueError(f'`growth_ceiling` must be "finite" or "none" (as MindSpore: grow to inf), got {value!r}')
    return cast("GrowthCeiling", value)
