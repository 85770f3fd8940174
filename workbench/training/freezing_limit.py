"""How much of what a freezing schedule promises do its steps really save?

The promise, the schedule's *limit*, is what the same steps cost in a net whose front layers rest for good. This
net, the schedule and the net with everything trained take turns in one process, so the machine treats them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.methods.parameter_groups import part_of_group, rebuild_optimizer
from workbench.methods.registry import METHODS
from workbench.tasks import Task
from workbench.training.speed import TimedSide, bootstrap_median_interval, fair_clock, resampled_medians, take_turns

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class FreezingLimit:
    """Step times of a freezing schedule; each interval is (median, low, high) with the ends of 95 %."""

    realised: Interval  # speed of the schedule's steps relative to full ones; larger is faster
    limit: Interval  # the same with layers that rest for good
    reached: Interval  # share of the time the limit saves that the schedule saves; NaN where the limit saves nothing
    rounds: int


def measure_freezing_limit(
    task: Task,
    candidate: tuple[BoostConfig, str],
    *,
    device: torch.device | None = None,
    seed: int = 0,
    rounds: int = 8,
    steps_per_block: int = 4,
    before_window: Callable[[], None] | None = None,
) -> FreezingLimit:
    """Measure a freezing schedule against full steps, those of the configuration without it, and against its limit.

    Arguments are those of :func:`~workbench.training.speed.measure_speed_ratio`, for a configuration that freezes.
    """
    if not rounds >= 2:
        raise ValueError(f"`rounds` must be at least 2, got {rounds!r}")
    # Steps of one kind: the resting sides' own are no pass that could be replayed.
    config, level = candidate[0].with_values({"runtime.cuda_graph": False}), candidate[1]
    options: Any = {"seed": seed, "at_least": steps_per_block, "before_window": before_window}
    options["device"] = device = device or devices.select_device("auto")
    switches = {method.switch: False for method in METHODS if method.schedules_groups}
    full = (config.with_values({"boost.mode": "manual", **switches}), level)
    scheduled = TimedSide(task, config, level, **options)
    if scheduled.schedule is None:
        raise ValueError(
            f"the configuration freezes nothing; switch {', '.join(switches)} on at a level that allows it"
        )
    resting = _RestingSide(task, *full, like=scheduled, **options)
    sides = (TimedSide(task, *full, **options), scheduled, resting)
    for one in sides:
        one.clock = fair_clock(device)
        one.block()  # warm-up
    turns = take_turns([one.block for one in sides])
    times = np.array([next(turns) for _ in range(rounds)])
    return FreezingLimit(
        realised=_interval(times[:, 0] / times[:, 1], seed),
        limit=_interval(times[:, 0] / times[:, 2], seed),
        reached=_reached(times, seed),
        rounds=rounds,
    )


class _RestingSide(TimedSide):
    """A net whose front layers rest for good, once for every kind of step that a schedule has."""

    def __init__(self, task: Task, config: BoostConfig, level: str, *, like: TimedSide, **options: Any) -> None:
        super().__init__(task, config, level, **options)
        assert like.schedule is not None  # the caller looked
        self.frequency, self.groups = like.frequency, like.groups
        name_of: dict[Tensor, str] = {value: name for name, value in like.boosted.model.named_parameters()}
        own = dict(self.boosted.model.named_parameters())
        self._trained = {}
        for group in self.groups:
            names = {name_of[p] for p in like.schedule.group_parameters(group) if p in name_of}
            self._trained[group] = {own[name] for name in own if name in names}
        # A separate optimizer for each: one that knows the resting parameters would walk over them.
        whole = self.boosted.optimizer
        self._optimizers = {group: _optimizer_over(whole, trained) for group, trained in self._trained.items()}

    def _enter(self, group: int) -> None:
        for parameter in self.boosted.model.parameters():
            parameter.requires_grad_(parameter in self._trained[group])
            parameter.grad = None

    def _train(self, batch: Any, group: int, *, ends: bool) -> None:
        with self.boosted.autocast():
            loss = self.task.compute_loss(self.boosted.model, batch)
        (loss / self.boosted.window.n_steps).backward()  # type: ignore[no-untyped-call]
        if ends:
            self._optimizers[group].step()
            self._optimizers[group].zero_grad()


def _optimizer_over(optimizer: Optimizer, wanted: set[torch.nn.Parameter]) -> Optimizer:
    parts = [part_of_group(group, wanted) for group in optimizer.param_groups]
    return rebuild_optimizer(optimizer, [part for part in parts if part["params"]])


def _interval(values: np.ndarray, seed: int) -> Interval:
    return (float(np.median(values)), *bootstrap_median_interval(values, seed))


def _reached(times: np.ndarray, seed: int) -> Interval:
    """Return saved time / saveable time, both as medians over rounds; rounds are drawn together."""
    relative = times[:, 1:] / times[:, :1]
    saved, saveable = 1.0 - resampled_medians(relative, seed).T
    middle = 1.0 - np.median(relative, axis=0)
    if not middle[1] > 0.0 or not np.all(saveable > 0.0):
        return (float("nan"),) * 3
    low, high = np.quantile(saved / saveable, [0.025, 0.975])
    return float(middle[0] / middle[1]), float(low), float(high)
