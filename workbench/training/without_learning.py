"""The metric that a task has without any learning: what a training has to beat before its speed means anything."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workbench.config import BoostConfig
from workbench.core.batch import inputs_and_target
from workbench.core.wrapped_model import unwrapped
from workbench.tasks import Task
from workbench.tasks.criterion import is_criterion
from workbench.training.evaluation import evaluate
from workbench.training.setup import prepare

_LONG = 10_000  # batches of a run that is not trained; one of few could be too short for an update


def metric_without_learning(task: Task, config: BoostConfig, level: str, seed: int, device: torch.device) -> float:
    """Return the metric of the network before it is trained, evaluated once on a seed's split.

    An accuracy is at least the share of the commonest label, which a network reaches that always says the same.
    """
    prepared = prepare(task, config, level=level, seed=seed, device=device, steps=_LONG)
    metric = evaluate(task, unwrapped(prepared.boosted.model), device, prepared.boosted.precision, seed)
    return max(metric, _commonest_share(task, seed)) if task.metric_name == "accuracy" else metric


def _commonest_share(task: Task, seed: int) -> float:
    """Return the share of the commonest label in the evaluation data; -inf where labels are not whole numbers."""
    found: list[Tensor] = []
    for batch in task.evaluation_batches(seed) if is_criterion(task.loss) else ():
        sides = inputs_and_target(batch)
        labels = None if sides is None else sides[-1]
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            return -math.inf
        found.append(labels.flatten().cpu().long())
    labels = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
    counted = torch.bincount(labels[labels >= 0])  # below 0 are those that a criterion ignores
    return float(counted.max() / counted.sum()) if len(counted) else -math.inf
