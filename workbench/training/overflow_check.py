"""Where an overflow is noticed: in a window's gradients, offloaded or not, the device's own flag, or another rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core import devices, host_values
from workbench.core.step_optimizer import StepOptimizer
from workbench.loss_scale.scaler import LossScaling


class OverflowCheck:
    """Judges one window after the other; ``found_inf``, float32, shape ``()``, is 1 where the last one overflowed."""

    def __init__(self, device: torch.device) -> None:
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        self._device = device
        self._has_flag = devices.has_overflow_flag(device)  # asked once: a step elsewhere pays nothing

    def begin_window(self, scaling: LossScaling) -> None:
        """Clear the device's flag, before the backward pass of a window's first micro-batch."""
        if self._has_flag and scaling.unscales:
            devices.begin_overflow_watch(self._device)

    def unscale_(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer, scaling: LossScaling) -> Tensor:
        """Unscale the gradients of a complete window; return whether any overflowed, bool, shape ``()``."""
        self.found_inf.zero_()
        if self._has_flag:
            if (flag := devices.device_overflow(self._device)) is not None:
                self.found_inf.copy_(flag)
            if scaling.agree is not None:
                scaling.agree(self.found_inf)  # now, since scale groups decide in `unscale_` whose scale falls
        scaling.unscale_(parameters, self.found_inf)
        if isinstance(optimizer, StepOptimizer):  # gradients may have left the device during the backward pass
            optimizer.unscale_offloaded_(scaling.scale_of, self.found_inf)
        if scaling.agree is not None:  # averaged gradients are equal on all ranks, those of servers apart differ
            scaling.agree(self.found_inf)
        if host_values.reads_without_waiting(self.found_inf) and not self.found_inf.item():
            return scaling.no_overflow
        return self.found_inf > 0
