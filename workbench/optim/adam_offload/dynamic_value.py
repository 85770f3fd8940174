"""A hyper-parameter that changes from step to step: a list with one entry per step, or a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Schedule", "first_value", "read_learning_rate", "read_weight_decay", "value_at"]

#: Entry i is used at step i, counted from 0; or a function of that i.
Schedule = tuple[float, ...] | Callable[[int], Any]


def read_learning_rate(rate: Any, name: str = "learning_rate") -> float | Schedule:
    """Return a learning rate as a number or a schedule.

    Args:
        rate: Number, tensor or array of one or no dimension, iterable of numbers, or callable of the step.
        name: For messages.

    Raises:
        TypeError: When it is none of these.
        ValueError: When a rate is negative or not finite, a text, or a tensor of more dimensions.
    """
    if isinstance(rate, bool) or rate is None:
        raise TypeError(f"`{name}` must be a number, a 1-D tensor, an iterable of numbers or a callable, got {rate!r}")
    if isinstance(rate, Real):
        return _not_negative(float(rate), name)
    if callable(rate):
        return cast("Schedule", rate)
    if isinstance(rate, Tensor):
        if rate.dim() > 1:
            raise ValueError(f"`{name}` must have at most one dimension, got shape {tuple(rate.shape)}")
        return _not_negative(float(rate), name) if rate.dim() == 0 else _entries(rate.tolist(), name)
    if isinstance(rate, str | bytes):
        raise ValueError(f"`{name}` must be a number or an iterable of numbers, got the text {rate!r}")
    if isinstance(rate, Iterable):
        return _entries(list(rate), name)
    raise TypeError(
        f"`{name}` must be a number, a 1-D tensor, an iterable of numbers or a callable, got {type(rate).__name__}"
    )


def read_weight_decay(decay: Any, name: str = "weight_decay") -> float | Schedule:
    """Return a weight decay as a number or a callable of the step.

    Args:
        decay: Number or callable.
        name: For messages.

    Raises:
        TypeError: When it is neither.
        ValueError: When it is negative or not finite.
    """
    if not isinstance(decay, bool):
        if isinstance(decay, Real):
            return _not_negative(float(decay), name)
        if callable(decay):
            return cast("Schedule", decay)
    raise TypeError(f"`{name}` must be a number or a callable of the step, got {type(decay).__name__}")


def value_at(schedule: Schedule, step: int, name: str) -> float:
    """Return the value for a step.

    Args:
        schedule: List of entries or callable.
        step: Index, counted from 0.
        name: For messages.

    Raises:
        RuntimeError: When the list has no entry for the step. MindSpore 2.7.0 fails likewise on a CPU and repeats the
            last entry on other devices; training on with a rate that nobody chose is no better.
        ValueError: When the callable returns a negative number or one that is not finite.

    Example:
        >>> value_at((0.1, 0.05), 1, "learning_rate"), value_at(lambda i: 0.5**i, 2, "weight_decay")
        (0.05, 0.25)
    """
    if isinstance(schedule, tuple):
        if step >= len(schedule):
            raise RuntimeError(
                f"`{name}` has {len(schedule)} entries, one per step, and step {step} (counted from 0) needs another; "
                "give as many as there are steps, or a callable of the step"
            )
        return schedule[step]
    with torch.no_grad():
        value = schedule(step)
    return _not_negative(float(value), f"{name}({step})")


def first_value(schedule: Schedule, name: str) -> float:
    """Return the value for step 0; 0 for an empty list, which fails at its first step only, as upstream."""
    return 0.0 if schedule == () else value_at(schedule, 0, name)


def _entries(listed: list[Any], name: str) -> tuple[float, ...]:
    values = []
    for entry in listed:
        if isinstance(entry, Tensor) and entry.dim() == 0:
            entry = entry.item()
        if isinstance(entry, bool) or not isinstance(entry, Real):
            raise ValueError(f"`{name}` must hold one number per step, got an entry of type {type(entry).__name__}")
        values.append(_not_negative(float(entry), name))
    return tuple(values)


def _not_negative(value: float, name: str) -> float:
    if not 0.0 <= value < math.inf:  # NaN fails this, too
        raise ValueError(f"`{name}` must be a finite number >= 0, got {value}")
    return value
