"""Courses of a learning rate over a run, as factors on the optimizer's own rates.

A run of length 0.4 falls to its own end, whatever curve it follows: a shape of ours is made for its number of updates,
and the task's own curve is recorded over the run as it is today and stretched (`stretched`). A prefix of a longer curve
says nothing about the rate at which a run should end.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from workbench.core.step_optimizer import StepOptimizer
from workbench.core.warning import warn
from workbench.methods.protocol import Method, Preparation
from workbench.methods.schedule.section import ScheduleSection

Shape = Literal["cosine", "linear", "warmup_stable_decay", "constant"]

# Share of the updates in which ``warmup_stable_decay`` falls. Hagele et al., "Scaling Laws and Compute-Optimal Training
# Beyond Fixed Training Durations", NeurIPS 2024, arXiv:2405.18392: better than at 20 %, up to about half of the run.
_DECAY_SHARE = 0.4
_PARTICULAR = ("params", "param_names", "initial_lr")


def factor_at(update: int, updates: int, shape: Shape, *, warmup: float = 0.1, final: float = 0.0) -> float:
    """Return the factor on the highest rate at an update, counted from 0; past the end it is that of the last one.

    It rises linearly for the share ``warmup`` of the updates, then takes the course of the shape down to ``final``.
    """
    rise = round(warmup * updates)
    if update < rise:
        return (update + 1) / rise
    progress = min((update - rise) / max(updates - 1 - rise, 1), 1.0)
    if shape == "constant":
        return 1.0
    if shape == "warmup_stable_decay":
        progress = max(progress - (1.0 - _DECAY_SHARE), 0.0) / _DECAY_SHARE
    fall = 0.5 * (1.0 - math.cos(math.pi * progress)) if shape == "cosine" else progress
    return 1.0 - (1.0 - final) * fall


def shaped(optimizer: Optimizer, updates: int, shape: Shape, *, warmup: float = 0.1, final: float = 0.0) -> LambdaLR:
    """Return a scheduler with one of our shapes (`factor_at`); the optimizer's present rates are the highest."""
    return LambdaLR(optimizer, functools.partial(factor_at, updates=updates, shape=shape, warmup=warmup, final=final))


def recorded(
    make_scheduler: Callable[[Optimizer, int], Any], optimizer: Optimizer, updates: int
) -> list[tuple[float, ...]] | None:
    """Return a scheduler's rates, per update and group, over a run without training, as factors on the optimizer's.

    None where ``make_scheduler(optimizer, updates)`` returns none; a ValueError when it follows what training gives.
    The optimizer stays as it is.
    """
    stand_in = StandIn(optimizer)
    highest = [float(group["lr"]) or 1.0 for group in stand_in.param_groups]
    scheduler = make_scheduler(stand_in, updates)
    if scheduler is None:
        return None
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("a ReduceLROnPlateau follows what training gives, so that its course is not known beforehand")
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler that steps past its end, or before the optimizer
        for _ in range(updates):
            present = zip(stand_in.param_groups, highest, strict=True)
            rates.append(tuple(float(group["lr"]) / top for group, top in present))
            stand_in.step()
            scheduler.step()
    return rates


def stretched(optimizer: Optimizer, updates: int, course: Sequence[tuple[float, ...]]) -> LambdaLR:
    """Return a scheduler that runs through a recorded course (per update the factor of each group) in other updates."""
    courses = list(zip(*course, strict=True))
    groups = (courses[min(group, len(courses) - 1)] for group in range(len(optimizer.param_groups)))
    return LambdaLR(optimizer, [functools.partial(_stretched_at, updates=updates, course=one) for one in groups])


def over_parts(
    make_scheduler: Callable[[Optimizer, int], Any],
    given: Optimizer,
    parts: Sequence[int],
    optimizer: Optimizer,
    updates: int,
) -> Any:
    """Return today's schedule for an optimizer whose groups are ``parts`` of a given one's (per group its number).

    A scheduler that takes an entry per group, such as a list of rates, is recorded with the original groups.
    """
    try:
        make_scheduler(StandIn(optimizer), updates)
    except ValueError:
        course = recorded(make_scheduler, given, updates)
        return course and stretched(optimizer, updates, [tuple(at[i] for i in parts) for at in course])
    return make_scheduler(optimizer, updates)


def _stretched_at(update: int, updates: int, course: Sequence[float]) -> float:
    last = len(course) - 1
    place = min(update / max(updates - 1, 1), 1.0) * last
    below = math.floor(place)
    share = place - below
    return (1.0 - share) * course[below] + share * course[min(below + 1, last)]


class StandIn(Optimizer):
    """An optimizer with another's groups and rates that moves nothing, for a scheduler to act on."""

    def __init__(self, other: Optimizer) -> None:
        groups = []
        for group in other.param_groups:
            rate = group.get("lr")
            kept = {key: value for key, value in group.items() if key not in _PARTICULAR}
            if rate is not None:
                kept["lr"] = float(rate.item() if isinstance(rate, Tensor) else rate)
            groups.append({**kept, "params": [nn.Parameter(torch.zeros(()))]})
        super().__init__(groups, dict(other.defaults))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move nothing."""


def has_rate(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has learning rates to change; some have none, or their own for each step."""
    if isinstance(optimizer, StepOptimizer) and optimizer.has_own_rates:
        return False
    return all(group.get("lr") is not None for group in optimizer.param_groups)


class ScheduleMethod(Method):
    """Shortens the run and gives the rate its course, unless that is the task's own or there is no rate."""

    needs_shapes = False

    def prepare(self, preparation: Preparation) -> None:
        """Say where there is no rate to give a course."""
        if self.config.part(ScheduleSection).shape != "task" and not has_rate(preparation.optimizer):
            warn("`schedule.shape` has no effect: the optimizer has no learning rate to change")

    def length(self, n_batches: float) -> float:
        """Return the share of the batches that the run takes."""
        return n_batches * self.config.part(ScheduleSection).length

    def scheduler(self, optimizer: Optimizer, updates: int) -> LRScheduler | None:
        """Return the course; None for the task's own, which is stretched where it is made, and without a rate."""
        section = self.config.part(ScheduleSection)
        if section.shape == "task" or not has_rate(optimizer):
            return None
        return shaped(optimizer, updates, section.shape, warmup=section.warmup, final=section.final)
