"""The plan that preparation leaves on a module, for whoever builds a training step around it later."""

from __future__ import annotations

from torch import nn

from workbench.config import Plan
from workbench.core.wrapped_model import unwrapped

__all__ = ["boost_plan_of", "boosted_module_of", "mark_"]

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
