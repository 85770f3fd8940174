"""How much of what a freezing schedule promises do its steps really save?

The promise, the schedule's *limit*, is what the same steps cost in a net whose front layers rest for good: their
parameters need no gradient, and the optimizer does not know them. Whatever freezing by schedule costs beyond that is
its own: switching layers on and off, walking over parameters without a gradient. Three sides train in turn in one
process, the net with everything trained, the schedule, and its limit (see ``speed_ratio``), so that the machine does
the same to each. On a CPU with one thread the time is processor time, which other programs disturb least.

What hangs on the optimizer besides (gradient centralization) is not part of the limit.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.tasks import Task
from workbench.training.speed import TimedSide, bootstrap_median_interval

__all__ = ["FreezingLimit", "measure_freezing_limit"]

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class FreezingLimit:
    """Step times of a freezing schedule; each field is (median, low, high), the ends of a 95 % interval.

    Args:
        realised: Speed of the schedule's steps relative to full ones; larger is faster.
        limit: The same with layers that rest for good.
        reached: Share of the time the limit saves that the schedule saves, too; NaN where the limit saves nothing.
        rounds: Rounds behind them.
    """

    realised: Interval
    limit: Interval
    reached: Interval
    rounds: int


def measure_freezing_limit(
    task: Task,
    candidate: tuple[BoostConfig, str],
    *,
    device: torch.device | None = None,
    seed: int = 0,
    rounds: int = 8,
    steps_per_block: int = 4,
    stop: Callable[[], bool] | None = None,
    before_window: Callable[[], None] | None = None,
) -> FreezingLimit:
    """Measure a freezing schedule against full steps and against its limit.

    Args:
        task: What is trained.
        candidate: Configuration with gradient freezing in effect, and its level. Full steps are the same configuration
            with freezing off.
        device: Where to train; None takes the accelerator if there is one.
        seed: Seed of weights, data and schedule.
        rounds: Rounds; each visits every kind of step of all sides.
        steps_per_block: Steps per block at least.
        stop: Asked between rounds; True ends the measurement after at least two.
        before_window: Called before every optimizer step, outside the time that is measured; what it raises ends the
            measurement without an answer.

    Raises:
        ValueError: If freezing is not in effect, or there are fewer than two rounds.
    """
    if not rounds >= 2:
        raise ValueError(f"`rounds` must be at least 2, got {rounds!r}")
    config, level = candidate
    device = device or devices.select_device("auto")
    full = (config.with_values({"boost.mode": "manual", "boost.grad_freeze": False}), level)
    side = functools.partial(
        TimedSide, task, device=device, seed=seed, at_least=steps_per_block, before_window=before_window
    )
    scheduled = side(*candidate)
    if not isinstance(scheduled.boosted.optimizer, FreezeOpt):
        raise ValueError("the configuration freezes nothing; switch `boost.grad_freeze` on at a level that allows it")
    resting = _RestingSide(
        task, *full, device=device, seed=seed, at_least=steps_per_block, before_window=before_window, like=scheduled
    )
    sides = (side(*full), scheduled, resting)
    for one in sides:
        if device.type == "cpu" and torch.get_num_threads() == 1:
            # One thread that never waits: its processor time is its time on a machine that does nothing else.
            one.clock = time.process_time
        one.block()  # warm-up
    rows: list[tuple[float, float, float]] = []
    for number in range(rounds):
        if stop is not None and number >= 2 and stop():
            break
        order = np.roll([0, 1, 2], number)  # none always comes after the same other one
        seconds = dict(zip(order, (sides[index].block() for index in order), strict=True))
        rows.append((seconds[0], seconds[1], seconds[2]))
    times = np.array(rows)
    return FreezingLimit(
        realised=_interval(times[:, 0] / times[:, 1], seed),
        limit=_interval(times[:, 0] / times[:, 2], seed),
        reached=_reached(times, seed),
        rounds=len(rows),
    )


class _RestingSide(TimedSide):
    """A net whose front layers rest for good, once for every kind of step that a schedule has."""

    def __init__(
        self,
        task: Task,
        config: BoostConfig,
        level: str,
        *,
        device: torch.device,
        seed: int,
        at_least: int,
        before_window: Callable[[], None] | None,
        like: TimedSide,
    ) -> None:
        super().__init__(task, config, level, device=device, seed=seed, at_least=at_least, before_window=before_window)
        self.frequency, self.groups = like.frequency, like.groups
        freezing = like.boosted.optimizer
        assert isinstance(freezing, FreezeOpt)  # the caller looked
        names: dict[torch.Tensor, str] = {value: name for name, value in like.boosted.model.named_parameters()}
        chosen = {group: {names[p] for p in freezing.group_parameters(group) if p in names} for group in self.groups}
        own = dict(self.boosted.model.named_parameters())
        self._trained = {group: [own[name] for name in own if name in kept] for group, kept in chosen.items()}
        # An optimizer of its own for each: one that knows the resting parameters would walk over them.
        whole = self.boosted.optimizer
        self._optimizers = {group: _optimizer_over(whole, trained) for group, trained in self._trained.items()}

    def _window(self, group: int) -> float:
        if self.before_window is not None:
            self.before_window()
        model, trained = self.boosted.model, set(self._trained[group])
        optimizer = self._optimizers[group]
        for parameter in model.parameters():
            parameter.requires_grad_(parameter in trained)
            parameter.grad = None
        n_steps = self.boosted.window.n_steps
        devices.synchronize(self.device)
        began = self.clock()
        for _ in range(n_steps):
            batch = self.batches[self.position % len(self.batches)]
            self.position += 1
            with self.boosted.autocast():
                loss = self.task.compute_loss(model, batch)
            (loss / n_steps).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        devices.synchronize(self.device)
        return (self.clock() - began) / n_steps


def _optimizer_over(optimizer: Optimizer, parameters: list[torch.nn.Parameter]) -> Optimizer:
    """Return a new optimizer of the same kind and options that knows only some parameters."""
    wanted = set(parameters)
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key not in {"params", "param_names", "initial_lr"}}
        kept = [parameter for parameter in group["params"] if parameter in wanted]
        if kept:
            groups.append({**options, "params": kept})
    return type(optimizer)(groups, **{key: optimizer.defaults[key] for key in ("lr",) if key in optimizer.defaults})


def _interval(values: np.ndarray, seed: int) -> Interval:
    return (float(np.median(values)), *bootstrap_median_interval(values, seed))


def _reached(times: np.ndarray, seed: int) -> Interval:
    """Return saved time / saveable time, both as medians over rounds; rounds are drawn together."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(times), size=(2000, len(times)))
    saved = 1.0 - np.median((times[:, 1] / times[:, 0])[picks], axis=1)
    saveable = 1.0 - np.median((times[:, 2] / times[:, 0])[picks], axis=1)
    middle_saved = 1.0 - np.median(times[:, 1] / times[:, 0])
    middle_saveable = 1.0 - np.median(times[:, 2] / times[:, 0])
    if not middle_saveable > 0.0 or not np.all(saveable > 0.0):
        return (float("nan"),) * 3
    low, high = np.quantile(saved / saveable, [0.025, 0.975])
    return float(middle_saved / middle_saveable), float(low), float(high)
