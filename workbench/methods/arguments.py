"""Checks of what a user hands to the methods' classes, in one sentence each."""

from __future__ import annotations

from numbers import Integral

from torch.optim import Optimizer

__all__ = ["checked_integer", "checked_optimizer"]


def checked_integer(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number: TypeError when it is of another kind (a truth value is), ValueError below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}")
    return int(value)


def checked_optimizer(name: str, value: object) -> Optimizer:
    """Return a torch optimizer: TypeError when it is something else."""
    if not isinstance(value, Optimizer):
        raise TypeError(f"`{name}` must be a torch.optim.Optimizer, got {type(value).__name__}")
    return value
