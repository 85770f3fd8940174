"""What one step gives back: tensors stay on the device, everything the host decides is plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

__all__ = ["BoostStep", "StepOutcome"]


class BoostStep(NamedTuple):
    """The triple that the train-one-step modules return; every entry is a scalar tensor on the device.

    Args:
        loss: Unscaled loss before the update, shape ``()``.
        overflow: Whether this step's gradients were not finite, bool, shape ``()``.
        loss_scale: Loss scale after the update rule ran, float32, shape ``()``.
    """

    loss: Tensor
    overflow: Tensor
    loss_scale: Tensor


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What happened in one micro-batch.

    Args:
        step: Micro-batch index, counted from 0.
        loss: Unscaled loss of this micro-batch, detached, shape ``()``.
        overflow: Whether the window's gradients were not finite, bool, shape ``()``; False before the window ends.
        loss_scale: Scale that the backward pass used, shape ``()``.
        loss_scale_after: Scale after the update rule ran, shape ``()``.
        applied: Whether an accumulation window ended here, so that an update was attempted.
        accumulated: Micro-batches in the gradient when the step ended.
        frozen_groups: Number of leading parameter groups frozen during this step.
        learning_rate: Rate of the first parameter group during this step; a tensor where the optimizer's is one.
        group_scales: Scales that the backward pass used, one per scale group, shape ``[n]``; None without groups.
        columns: Numbers of the methods in use that the host knows, by namespaced column (``"offload.hidden_share"``).
    """

    step: int
    loss: Tensor
    overflow: Tensor
    loss_scale: Tensor
    loss_scale_after: Tensor
    applied: bool
    accumulated: int
    frozen_groups: int
    learning_rate: float | Tensor
    group_scales: Tensor | None = None
    columns: Mapping[str, float] = field(default_factory=dict)
