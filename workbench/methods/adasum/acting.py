"""AdaSum in training: every server updates as if alone, and the updates are combined."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.methods.adasum.update import AdaSumUpdate
from workbench.methods.protocol import Method
from workbench.methods.weight_update import WeightUpdate

__all__ = ["AdaSumMethod"]

_EIGHT = 8  # the reference's number of ranks per server, whatever `common.device_number` says


class AdaSumMethod(Method):
    """Puts an update that combines in the place of the optimizer's step."""

    def refusal(self, model: nn.Module) -> str:
        """Refuse a DistributedDataParallel, after which all updates are the same."""
        if not any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            return ""
        return (
            "AdaSum combines updates, but a DistributedDataParallel averages gradients over all ranks; apply() to the "
            "plain model first and call boosted.distribute() then"
        )

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return the combining update; needs torch.distributed."""
        eight = self.config.compatibility.adasum_servers == "eight"
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return AdaSumUpdate(parameters, _EIGHT if eight else self.config.common.device_number)
