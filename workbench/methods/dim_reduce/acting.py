"""DimReduce in training: finished steps are subtracted, whatever optimizer was given."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, Optimizer

from workbench.methods.dim_reduce.update import dim_reduce_update
from workbench.methods.protocol import Method, Preparation
from workbench.methods.weight_update import WeightUpdate

__all__ = ["DimReduceMethod"]


class DimReduceMethod(Method):
    """Replaces the optimizer by plain subtraction and computes what is subtracted."""

    def prepare(self, preparation: Preparation) -> None:
        """Replace the optimizer by SGD with a rate of 1."""
        held = [parameter for group in preparation.optimizer.param_groups for parameter in group["params"]]
        preparation.optimizer = SGD([parameter for parameter in held if parameter.requires_grad], lr=1.0)

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return the quasi-Newton update; reads the components, or computes them from snapshots."""
        return dim_reduce_update(self.plan, model, optimizer)
