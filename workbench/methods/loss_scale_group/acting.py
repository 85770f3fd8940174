"""Group loss scales in training: every group's gradients carry a scale of their own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.scale_borders import NOT_COMPILED
from workbench.methods.loss_scale_group.scaling import GroupLossScaling
from workbench.methods.protocol import Method

__all__ = ["GroupLossScaleMethod"]


class GroupLossScaleMethod(Method):
    """Scales by groups instead of once for the loss."""

    def refusal(self, model: nn.Module) -> str:
        """Refuse a compiled model, whose modules cannot be seen from outside."""
        is_hidden = unwrapped(model) is not model and not isinstance(model, DistributedDataParallel)
        return NOT_COMPILED if is_hidden else ""

    def loss_scaling(self, model: nn.Module, device: torch.device) -> LossScaling:
        """Return the scaling by groups."""
        return GroupLossScaling.from_config(self.config, model, device)
