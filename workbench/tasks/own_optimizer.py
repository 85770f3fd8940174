"""The optimizer that a task's function makes; a surprise in it becomes one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from workbench.core.signatures import why_not_called
from workbench.tasks.errors import TaskError


def made_optimizer(task: str, make: Callable[[Any], Any], model: nn.Module) -> Optimizer:
    """Return what a task's function makes of a model's named parameters.

    Raises:
        TaskError: When it does not take them, or makes no torch optimizer or one that computes the loss by itself.
    """
    named = model.named_parameters()
    if why_not := why_not_called(make, named):
        raise TaskError(
            f"task {task!r}: `optimizer` is called as optimizer(model.named_parameters()), which it does not take "
            f"({why_not})"
        )
    try:
        optimizer = make(named)
    except AttributeError as error:
        if not str(error).startswith("'tuple' object"):
            raise
        raise TaskError(
            f"task {task!r}: `optimizer` gets model.named_parameters(), pairs of name and parameter, and takes them "
            f"for parameters ({error}): write `for name, parameter in named`"
        ) from error
    if not isinstance(optimizer, Optimizer):
        made = optimizer.values() if isinstance(optimizer, Mapping) else optimizer
        several = isinstance(made, Iterable) and any(isinstance(one, Optimizer) for one in made)
        how = "; a run takes one loss and one optimizer, whose parameter groups may differ" if several else ""
        raise TaskError(
            f"task {task!r}: `optimizer(named_parameters)` must return a torch.optim.Optimizer, "
            f"got {type(optimizer).__name__}{how}"
        )
    if why_not_called(type(optimizer).step, optimizer):  # LBFGS needs a closure
        raise TaskError(
            f"task {task!r}: {type(optimizer).__name__} computes the loss several times in a step; a run computes it "
            "once a batch: take an optimizer that steps on gradients, such as AdamW"
        )
    return optimizer
