"""What one step gives back: tensors stay on the device, everything the host decides is plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class BoostStep(NamedTuple):
    """The triple that the train-one-step modules return; every entry is a tensor of shape ``()`` on the device."""

    loss: Tensor  # unscaled, before the update
    overflow: Tensor  # bool: whether this step's gradients were not finite
    loss_scale: Tensor  # float32, after the update rule ran


class StepOutcome(NamedTuple):
    """What happened in one micro-batch; tensors have shape ``()`` and stay on the device.

    A tuple, as one is made in every step: a frozen dataclass takes five times as long.
    """

    step: int  # counted from 0
    loss: Tensor  # unscaled, of this micro-batch, detached
    overflow: Tensor  # bool: whether the window's gradients were not finite; False before the window ends
    loss_scale: Tensor  # that the backward pass used
    loss_scale_after: Tensor  # after the update rule ran
    applied: bool  # whether an accumulation window ended here, so that an update was attempted
    accumulated: int  # micro-batches in the gradient when the step ended
    frozen_groups: int  # leading parameter groups frozen during this step
    learning_rate: float | Tensor  # of the first parameter group, NaN if it has none; a tensor where it is one
    group_scales: Tensor | None = None  # that the backward pass used, one per scale group, shape [n]; or no groups
    #: Numbers of the methods in use that the host knows, by namespaced column (``"offload.hidden_share"``).
    columns: Mapping[str, float] = {}
