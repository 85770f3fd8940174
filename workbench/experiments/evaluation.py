"""Evaluate a model on a task: the metric over the whole evaluation set."""

from __future__ import annotations

import torch
from torch import nn

from workbench.tasks import Task, move_batch
from workbench.training.precision import Precision

__all__ = ["evaluate"]


def evaluate(task: Task, model: nn.Module, device: torch.device, precision: Precision, seed: int = 0) -> float:
    """Return the task's metric over its evaluation batches, in the metric's own unit.

    The model is put into evaluation mode and back into the mode it was in.

    Args:
        task: What is trained.
        model: Model on ``device``.
        device: Where to compute.
        precision: Number formats of the forward pass.
        seed: Seed of the data split.
    """
    metric = task.new_metric()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), precision.autocast():
            for batch in task.evaluation_batches(seed):
                task.update_metric(metric, model, move_batch(batch, device))
    finally:
        model.train(was_training)
    return float(metric.compute())
