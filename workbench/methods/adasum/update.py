"""AdaSum in the training step: every server updates as if alone, and the updates are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn

from workbench.core import distributed as ranks
from workbench.methods.adasum.method import AdaSum
from workbench.methods.weight_update import CompleteWindow, PlainUpdate

__all__ = ["AdaSumUpdate"]


class AdaSumUpdate:
    """The local optimizer's step, then the AdaSum of what it changed over all servers.

    A skipped step changes nothing anywhere, and the combination of nothing is nothing: no rank needs to ask.

    Args:
        parameters: What the optimizer trains, in the same order on all ranks.
        device_number: Ranks per server.

    Raises:
        ValueError: When the ranks are not 2, 4, 8, ... full servers.
        RuntimeError: When torch.distributed was not initialised.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], device_number: int) -> None:
        self.parameters = list(parameters)
        servers = ranks.world_size() // device_number
        self.adasum = AdaSum(ranks.rank(), device_number, servers, self.parameters)
        self._local = PlainUpdate()

    @property
    def server_group(self) -> distributed.ProcessGroup | None:
        """Return the ranks among which gradients are averaged before the local step; None when there is only this."""
        return self.adasum.links.server_group

    @torch.no_grad()
    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Update locally and combine."""
        old = [parameter.detach().clone() for parameter in self.parameters]
        columns = self._local(window)
        changes = torch._foreach_sub(old, [parameter.detach() for parameter in self.parameters])
        self.adasum(changes, self.parameters, old)
        return columns

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: all memory is the optimizer's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""
