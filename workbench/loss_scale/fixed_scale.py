"""Fixed loss scale: a constant, with the interface of the dynamic one.

A constant scale suits a training whose gradients are known to fit. What happens on an overflow is a second choice:
with ``drop_overflow_update`` the step is skipped, without it the update is applied whatever the gradients hold
(MindSpore 2.7, ``FixedLossScaleManager``).
"""

from __future__ import annotations

from torch import Tensor, nn

from workbench.loss_scale.dynamic_scale import check_update_arguments
from workbench.loss_scale.rule import checked_init

__all__ = ["FixedLossScaleManager", "FixedLossScaleUpdateCell"]


class FixedLossScaleUpdateCell(nn.Module):
    """Leave the loss scale alone; stands where `DynamicLossScaleUpdateCell` would.

    Args:
        loss_scale_value: The scale, >= 1.

    Raises:
        TypeError: When the scale is no number.
        ValueError: When the scale is smaller than 1 or not finite.

    Reference:
        MindSpore 2.7, ``mindspore/nn/wrap/loss_scale.py``.
    """

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__()
        self.loss_scale_value = checked_init("loss_scale_value", loss_scale_value)

    def forward(self, loss_scale: Tensor, overflow: Tensor) -> Tensor:
        """Return ``overflow`` unchanged and leave ``loss_scale`` as it is.

        Args:
            loss_scale: Live scale, float32, shape ``[]`` or ``[1]``.
            overflow: Flag of one element.

        Returns:
            ``overflow``, the very tensor.

        Raises:
            TypeError: When an argument is no tensor, or the scale is not float32.
            ValueError: When a shape does not fit.
        """
        check_update_arguments(loss_scale, overflow)
        return overflow

    def get_loss_scale(self) -> float:
        """Return the scale."""
        return self.loss_scale_value

    def extra_repr(self) -> str:
        """Return the argument for ``repr``."""
        return f"loss_scale_value={self.loss_scale_value:g}"


class FixedLossScaleManager:
    """Hold a constant loss scale.

    Args:
        loss_scale: The scale, >= 1.
        drop_overflow_update: Whether a step that overflowed is skipped. Without it there is no update module, and
            the optimizer must divide by the scale itself.

    Raises:
        TypeError: When an argument is of the wrong kind.
        ValueError: When the scale is smaller than 1 or not finite.

    Reference:
        MindSpore 2.7, ``mindspore/train/loss_scale_manager.py``.

    Example:
        >>> FixedLossScaleManager(1024.0).get_update_cell()
        FixedLossScaleUpdateCell(loss_scale_value=1024)
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        self.loss_scale = checked_init("loss_scale", loss_scale)
        if not isinstance(drop_overflow_update, bool):
            raise TypeError(f"`drop_overflow_update` must be a bool, got {drop_overflow_update!r}")
        self.drop_overflow_update = drop_overflow_update

    def get_loss_scale(self) -> float:
        """Return the scale."""
        return self.loss_scale

    def update_loss_scale(self, overflow: bool | Tensor) -> None:
        """Do nothing: the scale is fixed.

        Args:
            overflow: Ignored.
        """

    def get_drop_overflow_update(self) -> bool:
        """Return whether a step that overflowed is skipped."""
        return self.drop_overflow_update

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """Return the module for the train step, or None when overflows are not acted upon."""
        return FixedLossScaleUpdateCell(self.loss_scale) if self.drop_overflow_update else None
