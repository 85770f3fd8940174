"""Evaluate a model on a task: the metric over the whole evaluation set, leaving no trace on training."""

from __future__ import annotations

import torch
from torch import nn

from workbench.core.batch import move_batch
from workbench.tasks import Task
from workbench.training.precision import Precision

__all__ = ["evaluate"]


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
    was_training = [module for module in model.modules() if module.training]
    on_device = [] if device.type == "cpu" else [device]
    model.eval()
    try:
        with torch.random.fork_rng(on_device, device_type=device.type), torch.no_grad(), precision.autocast():
            for batch in task.evaluation_batches(seed):
                task.update_metric(metric, model, move_batch(batch, device))
    finally:
        for module in was_training:
            module.training = True
    return float(metric.compute())
