"""See before anything is trained that loss and metric can take what a model returns.

An evaluation may come at the end of hours, and what a model returns does not change on the way.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from workbench.core.batch import move_batch
from workbench.core.metrics import MetricError
from workbench.tasks import Task, TaskError
from workbench.tasks.task import is_criterion
from workbench.training.precision import Precision
from workbench.training.setup import kept_generators

__all__ = ["check_outputs"]

_checked: weakref.WeakValueDictionary[int, Task] = weakref.WeakValueDictionary()
"""Tasks that were looked at in this process, by their id: a study trains one task hundreds of times."""


def check_outputs(task: Task, model: nn.Module, device: torch.device, precision: Precision, seed: int) -> None:
    """Try a criterion and the metric on one batch each, in evaluation mode; leaves no trace on the training.

    What else may be wrong with a batch is not looked for: the first step will tell.

    Args:
        task: What will be trained; looked at once per process.
        model: Its model, on ``device``.
        device: Where to compute.
        precision: Number formats of the forward pass.
        seed: Seed of the data.

    Raises:
        TaskError: When the model returns something that loss or metric cannot take.
        MetricError: When the metric cannot take the batch.
    """
    if _checked.get(id(task)) is task:
        return
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with kept_generators(device), torch.no_grad(), precision.autocast():
            if is_criterion(task.loss):
                with _only_what_is_told():
                    task.compute_loss(model, move_batch(next(task.batches(seed)), device))
            with _only_what_is_told():
                task.update_metric(
                    task.new_metric(), model, move_batch(next(iter(task.evaluation_batches(seed))), device)
                )
    finally:
        for module in training:
            module.training = True
    _checked[id(task)] = task


@contextlib.contextmanager
def _only_what_is_told() -> Iterator[None]:
    try:
        yield
    except (MetricError, TaskError):
        raise
    except Exception:  # a criterion for what the model returns in training only; real trouble comes back there
        return
