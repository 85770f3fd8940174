"""The plan that preparation leaves on a module, for the code that builds a training step around it."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from workbench.config import ConfigError, Plan
from workbench.core.step_optimizer import held_parameters
from workbench.core.wrapped_model import unwrapped

_MARK = "boost_plan"


def mark_(module: nn.Module, plan: Plan) -> None:
    """Leave a plan on a module."""
    setattr(module, _MARK, plan)


def boost_plan_of(module: nn.Module) -> Plan | None:
    """Return the plan left on a module or on one it wraps; None when it was never prepared."""
    plan: Plan | None = getattr(boosted_module_of(module), _MARK, None)
    return plan


def boosted_module_of(module: nn.Module) -> nn.Module | None:
    """Return the module that was prepared: this one, or one inside (a backbone under its criterion, any wrapper)."""
    # A wrapper of torch.compile hands on its module's attributes.
    return next((unwrapped(child) for child in module.modules() if isinstance(getattr(child, _MARK, None), Plan)), None)


def prepared_module(network: nn.Module) -> nn.Module:
    """Return the module that was prepared; where none was, the network without its wrappers."""
    prepared = boosted_module_of(network)
    return unwrapped(network) if prepared is None else prepared


def trained_parameters(network: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """Return what an optimizer trains by the names snapshots are written and read under, in the order of the columns.

    The network may be in wrappers (torch.compile, DistributedDataParallel, a module with its loss). Raises ConfigError
    when the optimizer trains parameters that it does not hold.
    """
    names = {id(parameter): name for name, parameter in prepared_module(network).named_parameters()}
    trained = held_parameters(optimizer)
    unknown = sum(id(parameter) not in names for parameter in trained)
    if unknown:
        raise ConfigError(
            f"weight snapshots go by the names of the network's parameters, and {unknown} of the {len(trained)} that "
            "the optimizer trains are not in the network; let AutoBoost process the module that holds all of them"
        )
    return {names[id(parameter)]: parameter for parameter in trained}
