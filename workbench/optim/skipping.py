"""An optimizer that decides on the device whether to skip a step, as torch's fused ones do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["SkippingOptimizer", "loss_of"]


class SkippingOptimizer(Optimizer):
    """Base of optimizers whose ``step`` reads ``found_inf`` where torch's ``GradScaler`` leaves it."""

    def step_with_found_inf(self, found_inf: Tensor) -> None:
        """Step unless ``found_inf`` is not 0, decided on the device; step hooks run either way.

        Args:
            found_inf: Float tensor of one element.
        """
        self.found_inf = (found_inf.reshape(()) != 0).to(torch.float32)
        try:
            self.step()
        finally:
            del self.found_inf


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """Return the loss of a closure that evaluates the model again; None without one.

    Args:
        closure: What ``Optimizer.step`` was given.
    """
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
