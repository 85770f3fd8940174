"""AdaSum in training: every server updates as if alone, and the updates are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core import distributed as ranks
from workbench.core.step_optimizer import held_parameters
from workbench.methods.adasum.method import AdaSum
from workbench.methods.protocol import Method
from workbench.methods.weight_update import CompleteWindow, PlainUpdate, WeightUpdate

_EIGHT = 8  # the reference's number of ranks per server, whatever `common.device_number` says


class AdaSumUpdate(WeightUpdate):
    """The local optimizer's step, then the AdaSum of what it changed; a skipped step changes nothing anywhere."""

    needs_distribute = (
        "AdaSum combines updates of the same weights; call boosted.distribute() on every rank before the first step, "
        "which gives all of them the first one's"
    )
    refuses_ddp = "`ddp` must be False with AdaSum, which averages gradients inside a server only"

    def __init__(self, parameters: Sequence[nn.Parameter], device_number: int) -> None:
        self.parameters = list(parameters)
        self._local = PlainUpdate()
        servers = ranks.world_size() // device_number
        self.adasum = AdaSum(ranks.rank(), device_number, servers, self._as_real())
        self.server_group = self.adasum.links.server_group
        self.averages_gradients = self.server_group is not None

    @torch.no_grad()
    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Update locally and combine."""
        old = [parameter.clone() for parameter in self._as_real()]
        columns = self._local(window)
        parameters = self._as_real()
        self.adasum(torch._foreach_sub(old, parameters), parameters, old)
        return columns

    def _as_real(self) -> list[Tensor]:
        """Return views of the weights, of complex ones as pairs of numbers."""
        plain = (parameter.detach() for parameter in self.parameters)
        return [torch.view_as_real(one) if one.is_complex() else one for one in plain]


class AdaSumMethod(Method):
    """Puts an update that combines in the place of the optimizer's step."""

    refuses_ddp = (
        "AdaSum combines updates, but a DistributedDataParallel averages gradients over all ranks; apply() to the "
        "plain model first and call boosted.distribute() then"
    )

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return the combining update; needs torch.distributed."""
        eight = self.config.compatibility.adasum_servers == "eight"
        return AdaSumUpdate(held_parameters(optimizer), _EIGHT if eight else self.config.common.device_number)
