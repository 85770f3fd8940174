"""Loss scales with memory: modules that decide on the device, and managers that decide on the host.

Named and shaped after MindSpore 2.7 (``nn/wrap/loss_scale.py``, ``train/loss_scale_manager.py``). The dynamic ones give
its sequences of scales, by the rule of `workbench.loss_scale.rule`; the differences are that a factor of at most 1 is
refused, that growth stops before inf (``growth_ceiling="none"`` restores it), and that both bounds can be chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core import host_values
from workbench.core.arguments import checked_number, checked_switch
from workbench.loss_scale.rule import (
    GrowthCeiling,
    ScaleState,
    checked_bounds,
    checked_growth_ceiling,
    checked_init,
    checked_window,
    next_scale,
    next_scales,
)

MAX_CONSECUTIVE_OVERFLOWS = 1000  # in a row; the next one raises. MindSpore's number


class _UpdateCell(nn.Module):
    """What both kinds of modules share: the initial scale, and how they are called."""

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__()
        self.loss_scale_value = checked_init("loss_scale_value", loss_scale_value)

    def forward(self, loss_scale: Tensor, overflow: Tensor) -> Tensor:
        """Move ``loss_scale`` in place after one step, where a rule does, and return ``overflow``, the very tensor.

        Args:
            loss_scale: Live scale, float32, shape ``[]`` or ``[1]``.
            overflow: Whether the step's gradients were inf or NaN: one element, bool or a number that is not 0
                (NaN counts as overflow), on the scale's device.

        Raises:
            TypeError: When an argument is no tensor, or the scale is not float32.
            ValueError: When the scale's shape is neither ``[]`` nor ``[1]`` or ``overflow`` has several elements.
        """
        if not isinstance(loss_scale, Tensor) or loss_scale.dtype != torch.float32:
            came = loss_scale.dtype if isinstance(loss_scale, Tensor) else type(loss_scale).__name__
            raise TypeError(f"`loss_scale` must be a float32 tensor, because it is updated in place; got {came}")
        if loss_scale.ndim > 1 or loss_scale.numel() != 1:
            raise ValueError(f"`loss_scale` must have shape () or (1,), got {tuple(loss_scale.shape)}")
        if not isinstance(overflow, Tensor):
            raise TypeError(f"`overflow` must be a tensor on the device of the scale, got {type(overflow).__name__}")
        if overflow.numel() != 1:
            raise ValueError(f"`overflow` must have one element, got shape {tuple(overflow.shape)}")
        self._move(loss_scale, overflow)
        return overflow

    def _move(self, loss_scale: Tensor, overflow: Tensor) -> None:
        """Leave the scale as it is."""

    def get_loss_scale(self) -> float:
        """Return the initial loss scale."""
        return self.loss_scale_value

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return f"loss_scale_value={self.loss_scale_value:g}"


class FixedLossScaleUpdateCell(_UpdateCell):
    """Keep the scale constant; a drop-in for `DynamicLossScaleUpdateCell`.

    Args:
        loss_scale_value: The scale, >= 1.
    """


class DynamicLossScaleUpdateCell(_UpdateCell):
    """Adapt a loss scale on its own device, without ever waiting for it.

    Nothing here reads a tensor on the host, so a training step that uses it stays asynchronous. The buffers
    ``cur_iter`` (index of the coming call, from 1) and ``last_overflow_iter`` (call at which the scale last
    overflowed or was due to grow) are the whole memory: a loaded ``state_dict`` continues exactly.

    Args:
        loss_scale_value: Initial scale, >= 1; the live scale is the caller's tensor.
        scale_factor: Divisor on overflow, multiplier on growth, > 1.
        scale_window: Finite steps in a row before the scale grows, >= 1.
        minimum: Lower bound, in (0, loss_scale_value].
        maximum: Upper bound, >= loss_scale_value; None for float32's own.
        growth_ceiling: ``"finite"`` keeps the scale where the product would be inf; ``"none"`` lets it become inf.

    Example:
        >>> cell = DynamicLossScaleUpdateCell(loss_scale_value=2**12, scale_factor=2, scale_window=1000)
        >>> scale = torch.tensor(cell.get_loss_scale())
        >>> cell(scale, torch.tensor(True))
        tensor(True)
        >>> scale
        tensor(2048.)
    """

    cur_iter: Tensor
    last_overflow_iter: Tensor

    def __init__(
        self,
        loss_scale_value: float,
        scale_factor: float,
        scale_window: int,
        *,
        minimum: float = 1.0,
        maximum: float | None = None,
        growth_ceiling: GrowthCeiling = "finite",
    ) -> None:
        super().__init__(loss_scale_value)
        self.scale_factor = checked_number("scale_factor", scale_factor, above=1.0)
        self.scale_window = checked_window("scale_window", scale_window)
        self.minimum, self.maximum = checked_bounds(self.loss_scale_value, minimum, maximum)
        self.growth_ceiling = checked_growth_ceiling(growth_ceiling)
        # Integers: a counter in float32 would stop counting at 2**24 steps, and `.half()` must not touch it.
        self.register_buffer("cur_iter", torch.ones((), dtype=torch.int64))
        self.register_buffer("last_overflow_iter", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return f"{super().extra_repr()}, scale_factor={self.scale_factor:g}, scale_window={self.scale_window}"

    def _move(self, loss_scale: Tensor, overflow: Tensor) -> None:
        if self._stays(loss_scale, overflow):  # as on most steps, in a fifth of the time of the rule
            self.cur_iter.add_(1)
        else:
            self._follow_rule(loss_scale, overflow)

    def _stays(self, loss_scale: Tensor, overflow: Tensor) -> bool:
        """Return whether the host knows that the scale stays as it is."""
        if not host_values.reads_without_waiting(loss_scale, overflow, self.cur_iter) or overflow.item() != 0:
            return False
        return self.cur_iter.item() - self.last_overflow_iter.item() < self.scale_window

    @torch.no_grad()
    def _follow_rule(self, loss_scale: Tensor, overflow: Tensor) -> None:
        if self.cur_iter.device != loss_scale.device:  # once, on the first step after the scale moved
            self.cur_iter = self.cur_iter.to(loss_scale.device)
            self.last_overflow_iter = self.last_overflow_iter.to(loss_scale.device)
        finite_steps, overflowed = self.cur_iter - self.last_overflow_iter, overflow.reshape(()) != 0
        updated, restarted = next_scales(
            loss_scale.reshape(()),
            finite_steps,
            overflowed,
            factor=self.scale_factor,
            window=self.scale_window,
            minimum=self.minimum,
            maximum=self.maximum,
            growth_ceiling=self.growth_ceiling,
        )
        loss_scale.copy_(updated.reshape(loss_scale.shape))
        self.last_overflow_iter.copy_(torch.where(restarted, self.cur_iter, self.last_overflow_iter))
        self.cur_iter.add_(1)


class DynamicLossScaleManager:
    """Adapt a loss scale on the host, for loops that read the overflow flag anyway.

    Args:
        init_loss_scale: Initial scale, >= 1.
        scale_factor: Divisor on overflow, multiplier on growth, > 1.
        scale_window: Finite steps in a row before the scale grows, >= 1.
        minimum: Lower bound, in (0, init_loss_scale].
        maximum: Upper bound, >= init_loss_scale; None for float32's own.
        growth_ceiling: As for `DynamicLossScaleUpdateCell`.

    Raises:
        TypeError: When an argument is of the wrong kind.
        ValueError: When an argument is out of its range.

    Reference:
        MindSpore 2.7, ``mindspore/train/loss_scale_manager.py``.

    Example:
        >>> manager = DynamicLossScaleManager(init_loss_scale=1024, scale_factor=2, scale_window=2)
        >>> manager.update_loss_scale(True)
        >>> manager.get_loss_scale()
        512.0
    """

    def __init__(
        self,
        init_loss_scale: float = 2**24,
        scale_factor: float = 2,
        scale_window: int = 2000,
        *,
        minimum: float = 1.0,
        maximum: float | None = None,
        growth_ceiling: GrowthCeiling = "finite",
    ) -> None:
        self.loss_scale = checked_init("init_loss_scale", init_loss_scale)
        self.factor = checked_number("scale_factor", scale_factor, above=1.0)
        self.window = checked_window("scale_window", scale_window)
        self.minimum, self.maximum = checked_bounds(self.loss_scale, minimum, maximum)
        self.growth_ceiling = checked_growth_ceiling(growth_ceiling)
        self.finite_steps = 0
        self.consecutive_overflows = 0

    def get_loss_scale(self) -> float:
        """Return the scale the next step uses."""
        return self.loss_scale

    def update_loss_scale(self, overflow: bool | Tensor) -> None:
        """Follow one step.

        Args:
            overflow: Whether its gradients were inf or NaN. A tensor of one element is read here, which waits for
                its device; `get_update_cell` gives the form that does not.

        Raises:
            TypeError: When ``overflow`` is neither a bool nor one element.
            RuntimeError: On the 1001st overflow in a row, after the scale was lowered.
        """
        overflowed = _as_bool(overflow)
        state = ScaleState(self.loss_scale, self.finite_steps)
        state = next_scale(state, overflowed, self, growth_ceiling=self.growth_ceiling)
        self.loss_scale, self.finite_steps = state.scale, state.finite_steps
        self.consecutive_overflows = self.consecutive_overflows + 1 if overflowed else 0
        if self.consecutive_overflows > MAX_CONSECUTIVE_OVERFLOWS:
            raise RuntimeError(
                f"the gradients overflowed {self.consecutive_overflows} times in a row although the loss scale fell to "
                f"{self.loss_scale:g}: the values themselves are inf or NaN; lower the learning rate, clip the "
                "gradients, or train in bfloat16, which needs no loss scale"
            )

    def get_drop_overflow_update(self) -> bool:
        """Return True: a step that overflowed is never applied."""
        return True

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """Return a module that follows the same rule on the device, starting from the present scale."""
        bounds: Any = {"minimum": self.minimum, "maximum": self.maximum, "growth_ceiling": self.growth_ceiling}
        return DynamicLossScaleUpdateCell(self.loss_scale, self.factor, self.window, **bounds)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, the finite steps of the present streak, and the overflows since the last finite step."""
        return {name: getattr(self, name) for name in ("loss_scale", "finite_steps", "consecutive_overflows")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.loss_scale = float(state_dict["loss_scale"])
        self.finite_steps = int(state_dict["finite_steps"])
        self.consecutive_overflows = int(state_dict["consecutive_overflows"])


class FixedLossScaleManager:
    """Hold a constant loss scale.

    Args:
        loss_scale: The scale, >= 1.
        drop_overflow_update: Whether a step that overflowed is skipped. Without it there is no update module, and
            the optimizer must divide by the scale itself.

    Example:
        >>> FixedLossScaleManager(1024.0).get_update_cell()
        FixedLossScaleUpdateCell(loss_scale_value=1024)
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        self.loss_scale = checked_init("loss_scale", loss_scale)
        self.drop_overflow_update = checked_switch("drop_overflow_update", drop_overflow_update)

    def get_loss_scale(self) -> float:
        """Return the scale."""
        return self.loss_scale

    def update_loss_scale(self, overflow: bool | Tensor) -> None:
        """Do nothing: the scale is fixed."""

    def get_drop_overflow_update(self) -> bool:
        """Return whether a step that overflowed is skipped."""
        return self.drop_overflow_update

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """Return the module for the train step, or None when overflows are not acted upon."""
        return FixedLossScaleUpdateCell(self.loss_scale) if self.drop_overflow_update else None


def _as_bool(overflow: object) -> bool:
    if isinstance(overflow, Tensor) and overflow.numel() == 1:
        return bool(overflow)
    if isinstance(overflow, bool | np.bool_) or overflow in {0, 1}:
        return bool(overflow)
    raise TypeError(f"`overflow` must be a bool or a tensor of one element, got {overflow!r}")
