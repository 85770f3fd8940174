"""A task trained and judged by the plainest loop there is, without anything of the workbench but the task."""

from __future__ import annotations

import torch
from torch import nn

from workbench.tasks import Task


def trained(task: Task, seed: int, n_steps: int) -> tuple[nn.Module, float]:
    """Train a fresh model; return it with its metric on the evaluation data."""
    torch.manual_seed(seed)
    model = task.new_model()
    optimizer = task.new_optimizer(model)
    scheduler = task.new_scheduler(optimizer, n_steps)
    for _, batch in zip(range(n_steps), task.batches(seed), strict=False):
        task.compute_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return model, evaluated(task, model, seed)


def evaluated(task: Task, model: nn.Module, seed: int = 0) -> float:
    """Return a model's metric on the evaluation data."""
    model.eval()
    metric = task.new_metric()
    with torch.no_grad():
        for batch in task.evaluation_batches(seed):
            task.update_metric(metric, model, batch)
    return metric.compute()
