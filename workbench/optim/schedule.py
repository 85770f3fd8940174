"""A hyper-parameter of an optimizer that may change with the step: a number, one entry per step, or a function.

Past the last entry each optimizer does what its reference does. AdamOffload, whose reference runs on a CPU, raises an
error there; THOR, whose reference runs on a GPU only, where an index is clamped, stays at the last entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import checked_number

#: Entry i is used at step i, counted from 0; or a function of that i.
Schedule = tuple[float, ...] | Callable[[int], Any]


def read_schedule(name: str, value: Any) -> float | Schedule:
    """Return a number, 1-D tensor, iterable of numbers >= 0, or callable of the step, as number or schedule."""
    if isinstance(value, Tensor):
        if value.dim() > 1:
            raise ValueError(f"`{name}` must be 1-D with one entry per step, got shape {tuple(value.shape)}")
        value = value.tolist()
    if isinstance(value, Real):
        return checked_number(name, value)
    if callable(value):
        return cast("Schedule", value)
    if isinstance(value, Iterable):
        return tuple(_entry(name, entry) for entry in value)
    raise TypeError(
        f"`{name}` must be a number, a 1-D tensor, an iterable of numbers or a callable, got {type(value).__name__}"
    )


def value_at(
    schedule: float | Schedule, step: int, name: str, *, past_end: Literal["error", "last"] = "error"
) -> float:
    """Return the value for a step, counted from 0; one past the last entry is a RuntimeError or takes that entry.

    Example:
        >>> value_at((0.1, 0.05), 1, "learning_rate"), value_at(lambda i: 0.5**i, 2, "weight_decay")
        (0.05, 0.25)
        >>> value_at((0.1, 0.05), 2, "damping", past_end="last")
        0.05
    """
    if isinstance(schedule, float):
        return schedule
    if isinstance(schedule, tuple):
        if step < len(schedule):
            return schedule[step]
        if past_end == "last" and schedule:
            return schedule[-1]
        raise RuntimeError(
            f"`{name}` has {len(schedule)} entries, one per step, and step {step} (counted from 0) needs another; "
            "give as many as there are steps, or a callable of the step"
        )
    with torch.no_grad():
        value = schedule(step)
    return checked_number(f"{name}({step})", value.item() if isinstance(value, Tensor | np.ndarray) else value)


def _entry(name: str, entry: Any) -> float:
    number = entry.item() if isinstance(entry, Tensor) and entry.dim() == 0 else entry
    if isinstance(number, bool) or not isinstance(number, Real):
        raise ValueError(f"`{name}` must hold one number per step, got an entry of type {type(entry).__name__}")
    return checked_number(name, number)
