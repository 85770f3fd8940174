"""Evaluate a model on a task: the metric over the whole evaluation set, leaving no trace on training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from workbench.core.batch import move_batch
from workbench.tasks import Task
from workbench.training.precision import Precision

__all__ = ["evaluate", "evaluation_mode"]


def evaluate(task: Task, model: nn.Module, device: torch.device, precision: Precision, seed: int = 0) -> float:
    """Return the task's metric over its evaluation batches, in the metric's own unit.

    Every module is put into evaluation mode and back into the mode it was in, and random generators are put back, so
    that training goes on as if it had not been evaluated.

    Args:
        task: What is trained.
        model: Model on ``device``.
        device: Where to compute.
        precision: Number formats of the forward pass.
        seed: Seed of the data split.
    """
    metric = task.new_metric()
    with evaluation_mode([model], device), precision.autocast():
        for batch in task.evaluation_batches(seed):
            task.update_metric(metric, model, move_batch(batch, device))
    return float(metric.compute())


@contextlib.contextmanager
def evaluation_mode(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Put every module into evaluation mode, without gradients, and everything back as it was afterwards.

    Random generators are put back, too, so that training goes on as if nothing had been evaluated.

    Args:
        modules: What is evaluated.
        device: Where it computes; its generator is kept as well as the CPU's.
    """
    was_training = [child for module in modules for child in module.modules() if child.training]
    on_device = [] if device.type == "cpu" else [device]
    for module in modules:
        module.eval()
    try:
        with torch.random.fork_rng(on_device, device_type=device.type), torch.no_grad():
            yield
    finally:
        for child in was_training:
            child.training = True
