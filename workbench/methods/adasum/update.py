"""AdaSum in the training step: every server updates as if alone, and the updates are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from workbench.core import distributed as ranks
from workbench.methods.adasum.method import AdaSum
from workbench.methods.weight_update import CompleteWindow, PlainUpdate, WeightUpdate

__all__ = ["AdaSumUpdate"]


class AdaSumUpdate(WeightUpdate):
    """The local optimizer's step, then the AdaSum of what it changed over all servers.

    A skipped step changes nothing anywhere, and the combination of nothing is nothing: no rank needs to ask.

    Args:
        parameters: What the optimizer trains, in the same order on all ranks.
        device_number: Ranks per server.

    Raises:
        ValueError: When the ranks are not 2, 4, 8, ... full servers.
        RuntimeError: When torch.distributed was not initialised.
    """

    needs_distribute = (
        "AdaSum combines updates of the same weights; call boosted.distribute() on every rank before the first step, "
        "which gives all of them the first one's"
    )
    refuses_ddp = "`ddp` must be False with AdaSum, which averages gradients inside a server only"

    def __init__(self, parameters: Sequence[nn.Parameter], device_number: int) -> None:
        self.parameters = list(parameters)
        servers = ranks.world_size() // device_number
        self.adasum = AdaSum(ranks.rank(), device_number, servers, self.parameters)
        self._local = PlainUpdate()
        self.server_group = self.adasum.links.server_group
        self.averages_gradients = self.server_group is not None

    @torch.no_grad()
    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Update locally and combine."""
        old = [parameter.detach().clone() for parameter in self.parameters]
        columns = self._local(window)
        changes = torch._foreach_sub(old, [parameter.detach() for parameter in self.parameters])
        self.adasum(changes, self.parameters, old)
        return columns
