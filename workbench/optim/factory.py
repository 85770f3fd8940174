"""Make the optimizer a configuration names, or change the task's own."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.config import CompatibilityConfig, OptimizerConfig
from workbench.core.sparse_tables import sparse_tables
from workbench.core.step_optimizer import StepOptimizer, scale_rates
from workbench.core.torch_internals import has_fused_kernel
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.muon.optimizer import Muon
from workbench.optim.schedule_free import ScheduleFreeAdamW
from workbench.optim.thor.optimizer import Thor

THOR_RATE, THOR_DAMPING, THOR_MOMENTUM, THOR_FREQUENCY = 0.05, 0.1, 0.9, 20
_REFERENCE_NAMES = {"lr": "learning_rate", "nesterov": "use_nesterov"}  # of what torch calls otherwise
SMALLEST_DAMPING = 1e-8  # its root is still 1000 times the rounding of float32


def decaying_damping(step: int, *, initial: float, decay: float, frequency: int) -> float:
    """Return the damping of a step, counted from 0: ``initial`` (> 0) times ``decay``, in (0, 1], per refresh so far.

    Example:
        >>> [decaying_damping(step, initial=0.4, decay=0.5, frequency=10) for step in (0, 9, 10)]
        [0.4, 0.4, 0.2]
    """
    return max(initial * decay ** (step // frequency), SMALLEST_DAMPING)


def build_optimizer(
    config: OptimizerConfig, network: nn.Module, compatibility: CompatibilityConfig | None = None
) -> Optimizer:
    """Return the optimizer that a section names, over a network's parameters; a ValueError if it names none."""
    options = config.hyper_parameters()
    match config.name:
        case None:
            raise ValueError("`optimizer.name` is not set; use change_optimizer_() to change the task's own optimizer")
        case "thor":
            return _thor(options, network, compatibility or CompatibilityConfig())
        case "adam_offload":
            return _adam_offload(options, network)
        case "Muon":
            return Muon(network, **options)
        case "ScheduleFreeAdamW":
            return ScheduleFreeAdamW(network.named_parameters(), **options)
    kind: type[Optimizer] = getattr(torch.optim, config.name)
    # The fastest, and it decides on the device whether an overflowed update is skipped. Of a device that torch does not
    # know it takes the word that there is a kernel.
    kernel = f"_fused_{config.name.lower()}_"
    known = all(has_fused_kernel(parameter, kernel) for parameter in network.parameters())
    if known and not sparse_tables(network) and "fused" in inspect.signature(kind).parameters:
        options["fused"] = True
    return kind(list(network.named_parameters()), **options)


def change_optimizer_(optimizer: Optimizer, config: OptimizerConfig) -> None:
    """Set the hyper-parameters that a section without a name gives, in every parameter group.

    An optimizer that has no such hyper-parameter, or a course of its own for it, is a ValueError.
    """
    for name, value in config.hyper_parameters().items():
        if name in {"lr", "lr_factor"} and isinstance(optimizer, StepOptimizer) and optimizer.has_own_rates:
            raise ValueError(
                f"`optimizer.{name}` is set, but the {type(optimizer).__name__} was given a rate for each step"
            )
        groups, option = optimizer.param_groups, "lr" if name == "lr_factor" else name
        if isinstance(optimizer, Muon) and name in {"lr", "aux_lr"}:  # one option, of two kinds of groups
            groups = [group for group in groups if group["matrices"] is (name == "lr")]
            option = "lr"
        if any(option not in group for group in groups):
            raise ValueError(f"`optimizer.{name}` is set, but {type(optimizer).__name__} has no such parameter")
        if name == "lr_factor":
            scale_rates(groups, value)
            continue
        for group in groups:
            group[option] = value


def _thor(options: dict[str, Any], network: nn.Module, compatibility: CompatibilityConfig) -> Thor:
    usual = {"lr": THOR_RATE, "damping": THOR_DAMPING, "momentum": THOR_MOMENTUM, "frequency": THOR_FREQUENCY}
    arguments = _by_reference_names(usual | options)
    damping, frequency, decay = arguments["damping"], arguments["frequency"], arguments.pop("damping_decay", 1.0)
    if decay != 1:
        arguments["damping"] = partial(decaying_damping, initial=damping, decay=decay, frequency=frequency)
    return Thor(network, factors=compatibility.thor_factors, **arguments)


def _adam_offload(options: dict[str, Any], network: nn.Module) -> AdamOffload:
    arguments = _by_reference_names(options)
    if "betas" in arguments:
        arguments["beta1"], arguments["beta2"] = arguments.pop("betas")
    # Given as a module, scales and shifts of normalizations are recognised and not decayed.
    return AdamOffload(network, **arguments)


def _by_reference_names(options: dict[str, Any]) -> dict[str, Any]:
    return {_REFERENCE_NAMES.get(name, name): value for name, value in options.items()}
