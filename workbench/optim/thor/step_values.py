"""Hyper-parameters that may change with the step: numbers, tensors with one entry per step, functions of the step."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["StepValue", "checked_number"]


class StepValue:
    """A number for every step.

    Args:
        name: Parameter's name, for messages.
        value: A number; a tensor of one element, or 1-D with one entry per step, whose last entry stays in force past
            its end (the reference reads beyond it); or a function of the step, which is counted from 0.

    Raises:
        TypeError: When it is neither.
        ValueError: When a number is negative or not finite, or a tensor is empty or has several axes.

    Example:
        >>> from torch import tensor
        >>> [round(StepValue("damping", tensor([0.5, 0.25]))(step), 2) for step in range(3)]
        [0.5, 0.25, 0.25]
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.given = value
        self._function: Callable[[int], Any] | None = None
        self._values: list[float] = []
        if isinstance(value, Tensor):
            if value.dim() > 1 or value.numel() == 0:
                raise ValueError(f"`{name}` must be 1-D with one entry per step, got shape {tuple(value.shape)}")
            self._values = [checked_number(name, entry) for entry in value.reshape(-1).tolist()]
        elif callable(value):
            self._function = value
        else:
            self._values = [checked_number(name, value)]

    @property
    def varies(self) -> bool:
        """Whether it depends on the step."""
        return self._function is not None or len(self._values) > 1

    def __call__(self, step: int) -> float:
        """Return the value of a step, counted from 0."""
        if self._function is None:
            return self._values[min(step, len(self._values) - 1)]
        value = self._function(step)
        return checked_number(f"{self.name}({step})", value.item() if isinstance(value, Tensor) else value)


def checked_number(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a finite number >= 0 (> 0 when ``positive``) as a float.

    Args:
        name: Parameter's name, for messages.
        value: What was given.
        positive: Whether 0 is refused.

    Raises:
        TypeError: When it is no real number.
        ValueError: When it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__}")
    number = float(value)
    if not (math.isfinite(number) and (number > 0 if positive else number >= 0)):
        raise ValueError(f"`{name}` must be finite and {'above' if positive else 'at least'} 0, got {number:g}")
    return number
