"""A task in a line: what is trained on which batches, and only what else a test cares about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from workbench.tasks import Task


def task_of(model: Callable[[], nn.Module], batches: list[Any], *, momentum: float = 0.0, **others: Any) -> Task:
    """Return a task that classifies under SGD, and is judged by its loss on its own batches unless told otherwise."""
    given = {
        "name": "small",
        "loss": nn.CrossEntropyLoss(),
        "metric": "loss",
        "data_hash": "small",
        "evaluate": batches,
    }

    def sgd(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=momentum, fused=True)

    return Task(**{**given, "model": model, "train": batches, "optimizer": sgd, **others})


def images(n: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of eight images, each of the class of the sign of its mean; the same each time."""
    drawn = torch.randn(n, 8, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return [(x, (x.mean((1, 2, 3)) > 0).long()) for x in drawn]
