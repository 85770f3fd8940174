"""Build everything a run of a task under a configuration needs, in one place and in one order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from workbench.config import BoostConfig, Plan
from workbench.core import distributed as ranks
from workbench.core.batch import move_batch
from workbench.optim import build_optimizer, change_optimizer_
from workbench.tasks import Task
from workbench.tasks.batches import mixed_seed
from workbench.training import Boosted, apply

__all__ = ["Prepared", "kept_generators", "prepare", "seed_everything"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A boosted model of a task, its plan, its scheduler, and the task as its methods train it."""

    boosted: Boosted
    plan: Plan
    scheduler: LRScheduler | None
    task: Task  # with the criterion that its methods train with

    def batches(self, seed: int) -> Iterator[Any]:
        """Yield the batches to train on, on the model's device; they never end.

        Args:
            seed: Seed of the data's order.
        """
        device = self.boosted.device
        yield from self.boosted.methods.batches(move_batch(batch, device) for batch in self.task.batches(seed))


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators; models, dropout and schedules draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # models of the user's may draw from the global generator
    torch.manual_seed(seed)


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Put Python's, numpy's and torch's generators back afterwards, those of a device included."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # as in seed_everything
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def loss_of_first_batch(task: Task, seed: int, device: torch.device) -> Callable[[nn.Module], None]:
    """Return a call of a network as the task makes it, with its loss: what LessBN may record.

    Args:
        task: The task; its data are opened at the first call.
        seed: Seed of the data's order.
        device: Where the network is.
    """

    @cache
    def batch() -> Any:
        return move_batch(next(task.batches(seed)), device)

    def call(network: nn.Module) -> None:
        task.compute_loss(network, batch())

    return call


def prepare(task: Task, config: BoostConfig, *, level: str, seed: int, device: torch.device, steps: int) -> Prepared:
    """Build model, optimizer, boosting and scheduler; over several ranks also what averages their gradients.

    All ranks begin with rank 0's weights. Their random numbers part ways afterwards, so that dropout draws another mask
    on each; rank 0 draws what it would draw alone.

    Args:
        task: What is trained.
        config: Configuration; its ``optimizer`` section replaces the task's own optimizer.
        level: Boost level.
        seed: Seed of initial weights, dropout and the freezing schedule.
        device: Where to train.
        steps: Micro-batches the schedule is made for; the scheduler counts updates.
    """
    seed_everything(seed)
    model = task.new_model().to(device)
    model.train()
    if config.optimizer is not None and config.optimizer.name is not None:
        optimizer = build_optimizer(config.optimizer, model, config.compatibility)
    else:
        optimizer = task.new_optimizer(model)
        if config.optimizer is not None:
            change_optimizer_(optimizer, config.optimizer)

    boosted = apply(
        config,
        model,
        optimizer,
        level=level,
        seed=seed,
        criterion=task.loss,
        example_inputs=loss_of_first_batch(task, seed, device),
    )
    plan = boosted.plan
    if plan is None:
        raise RuntimeError("apply() returned no plan")
    if ranks.world_size() > 1:
        boosted.distribute()
    updates = max(1, steps // boosted.window.n_steps)
    scheduler = task.new_scheduler(boosted.optimizer, updates) if boosted.update.takes_schedule else None
    if ranks.rank() > 0:
        torch.manual_seed(mixed_seed(seed, ranks.rank()))
    criterion = boosted.methods.criterion(task.loss)
    return Prepared(boosted, plan, scheduler, task if criterion is task.loss else replace(task, loss=criterion))
