"""The loss-scale rule once more, for one scale in Python's numbers: what the package's two forms are compared with."""

from __future__ import annotations

import math

from workbench.loss_scale import LossScaleRule

__all__ = ["plain_next"]

_FLOAT32_MAX = 3.4028234663852886e38


def plain_next(
    scale: float, finite_steps: int, overflowed: bool, rule: LossScaleRule, growth_ceiling: str = "finite"
) -> tuple[float, int]:
    """Return the scale and its finite steps after a step that used ``scale`` after so many finite ones."""
    if overflowed:
        return max(scale / rule.factor, rule.minimum), 0
    if finite_steps + 1 < rule.window:
        return scale, finite_steps + 1
    bound = math.inf if rule.maximum is None else max(rule.maximum, scale)
    grown = min(scale * rule.factor, bound)
    return (scale if growth_ceiling == "finite" and grown > _FLOAT32_MAX else grown), 0
