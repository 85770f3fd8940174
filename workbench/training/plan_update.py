"""Which update a plan asks for."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from workbench.config import Plan
from workbench.methods.adasum.update import AdaSumUpdate
from workbench.methods.weight_update import PlainUpdate, WeightUpdate
from workbench.training.dim_reduce_update import dim_reduce_update

__all__ = ["update_of"]

_EIGHT = 8  # the reference's number of ranks per server, whatever `common.device_number` says


def update_of(plan: Plan | None, network: nn.Module, optimizer: Optimizer) -> WeightUpdate:
    """Return what makes new weights of gradients under a plan.

    Args:
        plan: What is in effect; None for nothing.
        network: The network AutoBoost processed; its parameter names are those of the weight snapshots.
        optimizer: The optimizer AutoBoost returned.

    Raises:
        ConfigError: When the plan needs a PCA matrix or snapshots that are missing or do not fit.
        RuntimeError: When the plan needs several ranks and torch.distributed was not initialised.
    """
    if plan is None:
        return PlainUpdate()
    if plan.adasum:
        eight = plan.config.compatibility.adasum_servers == "eight"
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return AdaSumUpdate(parameters, _EIGHT if eight else plan.config.common.device_number)
    if plan.dim_reduce:
        return dim_reduce_update(plan, network, optimizer)
    return PlainUpdate()
