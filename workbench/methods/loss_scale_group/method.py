"""Group loss scale: every group of parameters has a scale of its own, because their gradients differ in size.

Going backward, a gradient is multiplied where it enters the layers of a group and divided where it leaves them; going
forward nothing happens. Inside group k gradients so carry the scale ``s_k`` while the loss keeps the scale 1.

A *region* is a part of the network whose gradients carry one scale: a group between two marks, or a module between
two borders. Flags of regions are float32, 0.0 or 1.0, shape ``[regions]``. The scales are float32, shape
``[groups + 2]``: index 0 and the last are 1 and stand for what lies before and behind all groups; group k (from 0) is
at k + 1.

MindSpore 2.7, ``boost/group_loss_scale_manager.py``. Differences: scales have a floor and a ceiling, a growth window
may be given, an overflow lowers the scale of the group where it arose and not of those that merely received it, and
outputs keep float32 (there they are cast to float16, which a float32 layer behind them refuses).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench.core.arguments import checked_count, checked_number
from workbench.loss_scale.overflow import unscale_and_check_
from workbench.loss_scale.rule import FLOAT32_MAX, checked_bounds, checked_window, next_scales
from workbench.methods.loss_scale_group.groups import GroupMember, check_groups

REDUCE_RATIO = 1.0 / math.sqrt(2.0)
"""What a scale is multiplied by on overflow; MindSpore's number."""
GROWTH_RATIO = 2.0 ** (1.0 / 1000.0)
"""What a scale is multiplied by otherwise; MindSpore's number."""
_BEYOND_FLOAT32 = math.nextafter(FLOAT32_MAX, math.inf)
Unscaling = Literal["used", "updated"]
"""``"used"``: divide by the scale the backward pass multiplied by; ``"updated"``: by the next one, as the reference."""


def arising_overflow(received: Tensor, left: Tensor, nonfinite: Tensor) -> Tensor:
    """Return in which regions an overflow arose: what came in was finite, and something in there is not; bool.

    Layers before the one that made an inf merely receive it: lower scales would only cost them precision.
    """
    return ((left != 0) | (nonfinite != 0)) & (received == 0)


def scale_gradient(
    x: Tensor,
    scales: Tensor,
    into: int,
    out_of: int,
    received: Tensor,
    left: Tensor,
    *,
    border: tuple[int | None, int | None] | None = None,
) -> Tensor:
    """Return ``x`` as it is; going backward multiply its gradient by ``scales[into] / scales[out_of]``, read then.

    Half precision is widened to float32 under autocast, so that the gradient crosses in float32. ``received`` and
    ``left``, one element each, are set to 1.0 when it is not finite. The node's attribute ``border`` says which region
    the gradient leaves and enters, ``(out_of, into)`` unless given.
    """
    names = (out_of, into) if border is None else border
    apply: Callable[..., Tensor] = _ScaleGradient.apply  # torch leaves it untyped
    return apply(x, scales, (into, out_of), names, received, left)


class GroupLossScaleManager(nn.Module):
    """Give groups of parameters loss scales of their own and adapt each by its own overflows.

    A network marks its parts by calling the manager: ``manager(x, 0, 1)`` on the input of the first group,
    ``manager(x, 1, 2)`` between the first and the second, and so on to ``manager(x, n, n + 1)`` on the output of the
    n-th. In a network without marks the training modules put borders around the modules of each group themselves.

    Args:
        init_loss_scale: Initial scale (> 0), for all groups or one per group.
        loss_scale_groups: Groups of parameters, see `resolve_groups`; may be assigned later.
        reduce_ratio: Factor on overflow, in (0, 1).
        growth_ratio: Factor of growth, at least 1.
        growth_window: Finite steps in a row before a scale grows.
        minimum: Floor, at most the smallest initial scale; None for the smaller of 1 and that.
        maximum: Ceiling, at least the largest initial scale; None for float32's own.
        unscale_with: ``"used"``, or ``"updated"`` for the reference's arithmetic: gradients are divided by the scale
            after its update, and every group whose gradients are not finite loses scale.

    Raises:
        ValueError: When a group is empty or a parameter named twice.

    Example:
        >>> first, second = nn.Linear(2, 2), nn.Linear(2, 1)
        >>> manager = GroupLossScaleManager(4096, [list(first.parameters()), list(second.parameters())])
        >>> x = manager(torch.ones(1, 2), 0, 1)
        >>> x = manager(first(x), 1, 2)
        >>> manager(second(x), 2, 3).sum().backward()
        >>> second.bias.grad
        tensor([4096.])
    """

    dynamic_loss_scale: Tensor
    finite_steps: Tensor
    floors: Tensor
    ceilings: Tensor
    overflow_status: Tensor
    received: Tensor
    left: Tensor

    def __init__(
        self,
        init_loss_scale: float | Sequence[float],
        loss_scale_groups: Sequence[Sequence[GroupMember]],
        *,
        reduce_ratio: float = REDUCE_RATIO,
        growth_ratio: float = GROWTH_RATIO,
        growth_window: int = 1,
        minimum: float | None = None,
        maximum: float | None = None,
        unscale_with: Unscaling = "used",
    ) -> None:
        super().__init__()
        self.init_loss_scale = _checked_scales(init_loss_scale)
        self.reduce_ratio = checked_number("reduce_ratio", _plain(reduce_ratio), above=0.0, below=1.0)
        self.growth_ratio = checked_number("growth_ratio", _plain(growth_ratio), least=1.0)
        self.growth_window = checked_window("growth_window", growth_window)
        starts = (self.init_loss_scale,) if isinstance(self.init_loss_scale, float) else self.init_loss_scale
        lowest = min(1.0, *starts) if minimum is None else _plain(minimum)
        self.minimum = checked_bounds(min(starts), lowest, None)[0]
        self.maximum = checked_bounds(max(starts), self.minimum, _plain(maximum))[1] or FLOAT32_MAX
        if unscale_with not in ("used", "updated"):
            raise ValueError(f'`unscale_with` must be "used" or "updated" (as MindSpore), got {unscale_with!r}')
        self.unscale_with: Unscaling = unscale_with
        self.loss_scale_number = 0
        self._groups: Sequence[Sequence[GroupMember]] = []
        self.loss_scale_groups = loss_scale_groups

    @property
    def loss_scale_groups(self) -> Sequence[Sequence[GroupMember]]:
        """The groups as given; assigning others resets scales and counters."""
        return self._groups

    @loss_scale_groups.setter
    def loss_scale_groups(self, groups: Sequence[Sequence[GroupMember]]) -> None:
        check_groups(groups)
        self._groups = groups
        if groups or isinstance(self.init_loss_scale, float):
            self.set_loss_scale_status(len(groups), self.init_loss_scale)
        else:  # one scale per group was given, and the groups come later
            self._set(torch.ones(2))

    def forward(self, x: Tensor, layer1: int, layer2: int) -> Tensor:
        """Mark a place in the network, see the class; half precision is widened to float32 under autocast.

        Args:
            x: Output of the operator before the mark, which is returned.
            layer1: Group before the mark, from 1; 0 before the first.
            layer2: Group behind it; the number of groups plus 1 behind the last.

        Raises:
            TypeError: When a group is not an integer.
            ValueError: When there is no such group.
        """
        for name, layer in (("layer1", layer1), ("layer2", layer2)):
            checked_count(name, layer, None, kind="the number of a group")
            if layer < 0 or (self.loss_scale_number and layer > self.loss_scale_number + 1):
                raise ValueError(f"`{name}` must lie in [0, groups + 1 = {self.loss_scale_number + 1}], got {layer!r}")
        if not self.loss_scale_number or not x.requires_grad:
            return x  # no groups yet, evaluation, or the input: no gradient will come by
        behind, before = int(layer2), int(layer1)
        received, left = self.received[before : before + 1], self.left[behind : behind + 1]
        return scale_gradient(x, self.dynamic_loss_scale, before, behind, received, left)

    def get_loss_scale(self) -> float | tuple[float, ...]:
        """Return the initial scale, one number or one per group, as it was given."""
        return self.init_loss_scale

    def get_update_cell(self) -> GroupLossScaleManager:
        """Return the manager itself, which is its own update cell."""
        return self

    def set_loss_scale_status(self, loss_scale_number: int, init_loss_scale: float | Sequence[float]) -> None:
        """Set all scales, and forget overflows and streaks.

        Args:
            loss_scale_number: Number of groups, >= 0.
            init_loss_scale: Scale for all groups, or one per group.

        Raises:
            ValueError: When a scale is not positive or there is not one per group.
        """
        number = checked_count("loss_scale_number", loss_scale_number, 0, kind="an integer")
        scales = _checked_scales(init_loss_scale)
        values = (scales,) * number if isinstance(scales, float) else scales
        if len(values) != number:
            raise ValueError(f"`init_loss_scale` must hold one scale per group ({number}), got {len(values)}")
        self.loss_scale_number = number
        self._set(torch.tensor([1.0, *values, 1.0]))

    def update_loss_scale_status(self, layer: int, update_ratio: float | Tensor) -> Tensor:
        """Multiply the scale of one group and return the new one, float32, shape ``()``.

        Args:
            layer: Group, from 0.
            update_ratio: Factor; a result beyond floor or ceiling stops there.

        Raises:
            ValueError: When there is no such group.
        """
        if isinstance(layer, bool) or not isinstance(layer, Integral) or not 0 <= layer < self.loss_scale_number:
            raise ValueError(f"`layer` must be a group in [0, {self.loss_scale_number - 1}], got {layer!r}")
        with torch.no_grad():
            scale = self.dynamic_loss_scale[layer + 1]
            moved = scale * torch.as_tensor(update_ratio, dtype=scale.dtype, device=scale.device)
            scale.copy_(torch.minimum(torch.maximum(moved, self.floors[layer]), self.ceilings[layer]))
        return scale.clone()

    @property
    def group_scales(self) -> Tensor:
        """The live scale of each group, a view of shape ``[groups]``."""
        return self.dynamic_loss_scale[1 : self.loss_scale_number + 1]

    @property
    def overflow_count(self) -> Tensor:
        """The number of groups in which the last step overflowed, int64, shape ``()``."""
        return self.overflow_status.sum()

    def calibrate(self, scales: Sequence[float], reference: float) -> None:
        """Start from scales that were found, with floor and ceiling moved along.

        Args:
            scales: One per group, > 0.
            reference: Scale that ``minimum`` and ``maximum`` were meant for: a group that starts at twice this has
                twice this floor and, where one was given, twice this ceiling.
        """
        self.set_loss_scale_status(len(scales), scales)
        found = self.group_scales
        self.floors.copy_((found * (self.minimum / reference)).clamp(min=torch.finfo(torch.float32).tiny))
        if self.maximum < FLOAT32_MAX:
            self.ceilings.copy_((found.double() * (self.maximum / reference)).clamp(max=FLOAT32_MAX))

    def next_scales(self, overflowed: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales and streaks, new tensors of shape ``[n]``, that would follow a step; nothing changes.

        Args:
            overflowed: Whether an overflow arose in each group, bool, shape ``[n]``.
            held: Whether a group could not be judged, because its gradients came in broken: it neither falls nor counts
                the step.
        """
        scales, counted = self.group_scales, self.finite_steps + 1
        moved, restarted = next_scales(
            scales,
            counted,
            overflowed,
            factor=self.growth_ratio,
            window=self.growth_window,
            # A scale set below its floor by hand stays where it is.
            minimum=torch.minimum(self.floors, scales),
            maximum=self.ceilings,
            growth_ceiling="none",  # every group has a finite ceiling
            reduce_ratio=self.reduce_ratio,
        )
        still = held & ~overflowed
        steps = torch.where(restarted, torch.zeros_like(counted), counted)
        return torch.where(still, scales, moved), torch.where(still, self.finite_steps, steps)

    def update(self, overflowed: Tensor, held: Tensor) -> None:
        """Follow one step on the device.

        Args:
            overflowed: As for `next_scales`.
            held: Likewise.
        """
        with torch.no_grad():
            scales, steps = self.next_scales(overflowed, held)
            self.group_scales.copy_(scales)
            self.finite_steps.copy_(steps)
            self.overflow_status.copy_(overflowed)
            self.received.zero_()
            self.left.zero_()

    def extra_repr(self) -> str:
        """Return the number of groups and the rule for ``repr``."""
        return (
            f"groups={self.loss_scale_number}, reduce_ratio={self.reduce_ratio:g}, "
            f"growth_ratio={self.growth_ratio:g}, growth_window={self.growth_window}"
        )

    def _set(self, scales: Tensor) -> None:
        device = self.dynamic_loss_scale.device if hasattr(self, "dynamic_loss_scale") else None
        n = len(scales) - 2
        states = {
            "dynamic_loss_scale": scales.to(torch.float32),
            "finite_steps": torch.zeros(n, dtype=torch.int64),
            "floors": torch.full((n,), self.minimum),
            "ceilings": torch.full((n,), self.maximum),
            "overflow_status": torch.zeros(n, dtype=torch.bool),
            "received": torch.zeros(n + 2),
            "left": torch.zeros(n + 2),
        }
        for name, value in states.items():
            self.register_buffer(name, value.to(device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GroupLossScaleManager:
        # `network.half()` reaches a manager that the network holds, and float16 has no room for its scales.
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, moved in dict(self.named_buffers(recurse=False)).items():
            if moved.dtype != before[name].dtype:
                setattr(self, name, before[name].to(moved.device))
        return self


class _ScaleGradient(torch.autograd.Function):
    """Identity; see `scale_gradient`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scales: Tensor,
        indices: tuple[int, int],
        border: tuple[int | None, int | None],
        received: Tensor,
        left: Tensor,
    ) -> Tensor:
        # Not saved tensors: these change in place after the backward pass, and are to be read as they are during it.
        ctx.scales, ctx.indices, ctx.flags, ctx.dtype = scales, indices, (received, left), x.dtype
        ctx.border = border
        if x.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(x.device.type):
            return x.float()
        # Not a view in autograd's books: an activation that works in place may follow.
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        into, out_of = ctx.indices
        with torch.no_grad():
            scaled = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True)
            found = torch.zeros((), device=scaled.device)
            unscale_and_check_([scaled], ctx.scales[into] / ctx.scales[out_of], found)
            for flag in ctx.flags:
                flag.copy_(torch.maximum(flag, found.to(flag.device, non_blocking=True)))
        return first_derivative(scaled.to(ctx.dtype), gradient), None, None, None, None, None


def first_derivative(passed: Tensor, gradient: Tensor) -> Tensor:
    """Return what a border passes on, computed without a graph, such that a derivative of it is a RuntimeError."""
    if not (torch.is_grad_enabled() and gradient.requires_grad):  # no second derivative will be taken
        return passed
    refusing: Tensor = _Refusing.apply(passed, gradient)  # type: ignore[no-untyped-call]
    return refusing


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, passed: Tensor, gradient: Tensor) -> Tensor:
        return passed.view_as(passed)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "group loss scales cannot be combined with a loss that contains gradients, such as a gradient penalty; "
            "switch `boost.loss_scale_group` off"
        )


def _checked_scales(value: object) -> float | tuple[float, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise ValueError("`init_loss_scale` must be a scale or one per group, got an empty list")
        return tuple(map(_checked_scale, value))
    return _checked_scale(value)


def _checked_scale(value: object) -> float:
    return checked_number("init_loss_scale", _plain(value), above=0.0, below=_BEYOND_FLOAT32)


def _plain(value: Any) -> Any:
    """Return the number that a tensor of one element holds."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
