"""Small results of a device on their way to the host, which goes on meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.core import devices


class HostCopy:
    """A copy of a small tensor on its way to the host, queued behind what computes it, to be read later."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.Event | None = None
        if not devices.pins_memory(values.device):
            self._values = values.detach().cpu().clone()
            return
        self._values = devices.host_room(values.numel(), values.dtype, values.device).view(values.shape)
        self._values.copy_(values.detach(), non_blocking=True)
        self._event = torch.Event(values.device)
        self._event.record()

    def read(self) -> Tensor:
        """Return the values on the host; waits only if they have not arrived."""
        if self._event is not None and not self._event.query():
            self._event.synchronize()
        return self._values
