"""The loss scale of a training run: its tensor, its rule, and whether an overflow drops the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import BoostConfig
from workbench.core import host_values
from workbench.core.torch_internals import version_of
from workbench.loss_scale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, unscale_and_check_


class LossScaling:
    """Hold the loss scale on the device and move it by its rule, without host synchronisation.

    Args:
        scale: Initial scale (> 0); a number, or a tensor of shape ``()`` or ``(1,)``, which is copied.
        update_cell: Module called as ``cell(scale, overflow)`` after every window; None keeps the scale.
        drop_overflow_update: Whether an overflow skips the update. False applies it as it is.
        device: Device of the scale.
        collapse_after: Consecutive overflows at ``minimum``, the floor, after which training is given up; None never.

    Attributes:
        agree: Takes the largest value over ranks of a float tensor, in place; None on a single rank.
        group_names: What groups with a scale of their own are called; empty when there is one scale for all.
    """

    group_names: tuple[str, ...] = ()

    def __init__(
        self,
        scale: float | Tensor = 1.0,
        update_cell: nn.Module | None = None,
        *,
        drop_overflow_update: bool = False,
        device: torch.device | None = None,
        collapse_after: int | None = None,
        minimum: float = 1.0,
    ) -> None:
        self._scale = torch.as_tensor(scale, dtype=torch.float32, device=device).detach().clone()
        self.update_cell = update_cell.to(device) if update_cell is not None and device is not None else update_cell
        self.drop_overflow_update = drop_overflow_update
        self.collapse_after = collapse_after
        self.minimum = minimum
        self.is_unit = not isinstance(scale, Tensor) and scale == 1.0 and update_cell is None
        self.unscales = not self.is_unit
        self.agree: Callable[[Tensor], None] | None = None
        #: A constant False on the device.
        self.no_overflow = torch.zeros((), dtype=torch.bool, device=device)
        self._known: tuple[Tensor, int, tuple[Tensor, Tensor]] | None = None

    @classmethod
    def from_config(cls, config: BoostConfig, device: torch.device) -> LossScaling:
        """Build what ``config.loss_scale`` asks for on this device."""
        rule = config.loss_scale
        kind = config.effective_loss_scale_kind(device.type)
        if kind == "none":
            return cls(device=device)
        # The cells begin at 1 or above, as the reference's; the live scale, which they are handed, need not.
        init, nominal = float(rule.init), max(1.0, float(rule.init))
        cell: nn.Module | None
        if kind == "fixed":
            drops = rule.drop_overflow_update
            cell = FixedLossScaleUpdateCell(nominal) if drops else None
        else:
            drops, ceiling = True, config.compatibility.loss_scale_ceiling
            bounds: Any = {"minimum": rule.minimum, "maximum": rule.maximum, "growth_ceiling": ceiling}
            cell = DynamicLossScaleUpdateCell(nominal, rule.factor, rule.window, **bounds)
        return cls.with_cell(cell, init, drop_overflow_update=drops, device=device, collapse_after=rule.collapse_after)

    @classmethod
    def seeded(cls, sens: float, device: torch.device | None) -> LossScaling:
        """Return a constant that seeds the backward pass and stays in the gradients: the reference's ``sens``."""
        scaling = cls(sens, device=device)
        scaling.unscales = False
        return scaling

    @classmethod
    def with_cell(cls, cell: nn.Module | None, scale: float, **others: Any) -> LossScaling:
        """Return a scale with an update module, the user's perhaps, whose ``minimum``, if it has one, is the floor.

        Without one the floor is the scale; ``others`` are arguments of the class.
        """
        return cls(float(scale), cell, minimum=float(getattr(cell, "minimum", scale)), **others)

    @property
    def scale(self) -> Tensor:
        """The live scale, float32, of one element."""
        return self._scale

    def shown_scale(self) -> Tensor:
        """Return the live scale as it is now, in a tensor that stays so."""
        scale = self.scale
        return self._at_rest(scale)[0] if host_values.reads_without_waiting(scale) else scale.clone()

    def _at_rest(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of a scale and of its reciprocal, shape ``()``, remade only when it has changed.

        On a CPU alone, where the rule writes nothing on most steps: a captured graph must compute both in every replay.
        """
        known = self._known
        if known is None or known[0] is not scale or known[1] != version_of(scale):  # counted up by writing in place
            kept = scale.detach().clone()
            known = self._known = scale, version_of(scale), (kept, kept.reshape(()).reciprocal())
        return known[2]

    def seed_gradient(self, loss: Tensor) -> Tensor | None:
        """Return what the backward pass of a loss may start with in place of 1; None where the loss must be scaled."""
        if type(self) is not LossScaling or loss.dtype != torch.float32 or loss.ndim or self._scale.ndim:
            return None
        return self._scale if loss.is_cpu and self._scale.is_cpu else None

    @property
    def moves(self) -> bool:
        """Whether the scale tensor may change in place, so that anyone who keeps it must copy it."""
        return self.update_cell is not None

    @property
    def autocast_allowed(self) -> bool:
        """Whether the coming forward pass may run in reduced precision."""
        return True

    @property
    def group_scales(self) -> Tensor | None:
        """The live scale of each group, shape ``[n]``; None when there is one scale for all."""
        return None

    def group_of(self, parameter: nn.Parameter) -> int:
        """Return the index of the group whose scale a parameter's gradient carries, -1 where it has no own."""
        del parameter
        return -1

    def seed(self, loss: Tensor) -> Tensor:
        """Return what the backward pass starts from: the loss, of any shape with one element, times the scale."""
        return loss if self.is_unit else loss * self.scale.reshape(loss.shape)

    def scale_of(self, parameter: nn.Parameter) -> Tensor:
        """Return the scale in force where a parameter is used, shape ``()``; until the rule moves it."""
        return self.scale.reshape(())

    def unscale_(self, parameters: Sequence[nn.Parameter], found_inf: Tensor) -> None:
        """Divide gradients by the scale in place, in one pass, and set ``found_inf`` to 1 if one is not finite.

        It is float32, of shape ``()``, and 1 on entry when the device itself saw an overflow, else 0.
        """
        gradients, scale = [parameter.grad for parameter in parameters], self.scale
        # Beyond a scale of 2**126 the reciprocal is denormal. The reference's CPU kernels then count it as 0 for
        # tensors above a size that depends on the machine; here every gradient is kept.
        known = host_values.reads_without_waiting(scale)
        reciprocal = self._at_rest(scale)[1] if known else scale.reshape(()).reciprocal()
        unscale_and_check_(gradients, reciprocal, found_inf)

    def set(self, scale: Tensor) -> None:
        """Overwrite the scale from a tensor with one element."""
        # A new tensor: outcomes of earlier steps may still hold the old one.
        self._scale = scale.detach().to(self._scale, copy=True).reshape(self._scale.shape)

    def after_window(self, overflow: Tensor) -> None:
        """Apply the rule after a window; ``overflow`` is bool, of shape ``()``."""
        if self.update_cell is not None:
            self.update_cell(self.scale, overflow)

    @property
    def adapts(self) -> bool:
        """Whether a rule moves the scale."""
        return self.update_cell is not None and not isinstance(self.update_cell, FixedLossScaleUpdateCell)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the rule's counters."""
        cell = self.update_cell.state_dict() if self.update_cell is not None else {}
        return {"scale": self.scale.clone(), "update_cell": cell}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        self.set(state["scale"])
        if self.update_cell is not None:
            self.update_cell.load_state_dict(state["update_cell"])
