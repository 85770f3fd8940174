"""Small results of the device that the host reads later, when reading no longer makes it wait."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.core import devices

__all__ = ["HostCopy"]


class HostCopy:
    """A copy of a small tensor on its way to the host.

    Args:
        values: The tensor; its copy is queued behind what computes it.
    """

    def __init__(self, values: Tensor) -> None:
        self._event: torch.Event | None = None
        if not devices.pins_memory(values.device):
            self._values = values.detach().cpu().clone()
            return
        self._values = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        self._values.copy_(values.detach(), non_blocking=True)
        self._event = torch.Event(values.device)
        self._event.record()

    def read(self) -> Tensor:
        """Return the values on the host; waits only if they have not arrived."""
        if self._event is not None and not self._event.query():
            self._event.synchronize()
        return self._values
