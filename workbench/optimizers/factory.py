"""Make the optimizer a configuration names, or change the task's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.config import OptimizerConfig

__all__ = ["build_optimizer", "change_optimizer_"]


def build_optimizer(config: OptimizerConfig, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Return the named torch optimizer over some parameters.

    Torch's fused implementation is used where the class has one: it is the fastest, and it decides on the device
    whether an overflowed update is skipped.

    Args:
        config: Section ``optimizer`` with a name.
        named_parameters: Pairs (name, parameter).

    Raises:
        ValueError: When the section names no optimizer.
    """
    if config.name is None:
        raise ValueError("`optimizer.name` is not set; use change_optimizer_() to change the task's own optimizer")
    kind: type[Optimizer] = getattr(torch.optim, config.name)
    options = config.hyper_parameters()
    if "fused" in inspect.signature(kind).parameters:
        options["fused"] = True
    return kind(list(named_parameters), **options)


def change_optimizer_(optimizer: Optimizer, config: OptimizerConfig) -> None:
    """Set the hyper-parameters that a section without a name gives, in every parameter group.

    Args:
        optimizer: Changed in place.
        config: Section ``optimizer`` without a name.

    Raises:
        ValueError: When the optimizer has no such hyper-parameter.
    """
    for name, value in config.hyper_parameters().items():
        for group in optimizer.param_groups:
            if name not in group:
                raise ValueError(f"`optimizer.{name}` is set, but {type(optimizer).__name__} has no such parameter")
            group[name] = value
