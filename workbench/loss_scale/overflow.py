"""Overflow: unscale and test all gradients in one pass, skip the update without asking the host.

The flag ``found_inf`` is a float32 tensor of one element on the device, 0.0 or 1.0, as in ``torch.amp.GradScaler``.
It goes to the optimizer as it is: torch's fused optimizers read it inside their kernel and leave weights and state
alone when it is set. Only an optimizer that cannot do this makes the host wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from workbench.core import devices
from workbench.core.step_optimizer import exact_flag, held_parameters, skips_on_device
from workbench.core.torch_internals import check_and_unscale_, has_fused_kernel, mark_stepped, takes_found_inf
from workbench.core.warning import warn
from workbench.loss_scale.cached_adam import step_on_cached_lists
from workbench.loss_scale.gradient_statistics import real_values

_WIDENED_ELEMENTS = 1 << 26  # at once, unless a tensor has more: 256 MiB
_FUSED_KERNELS = {SGD: "_fused_sgd_", AdamW: "_fused_adamw_", Adam: "_fused_adam_", Adagrad: "_fused_adagrad_"}


class NonFusedOptimizerWarning(UserWarning):
    """The optimizer cannot skip a step on the device, so every step waits for it."""


class ScaleCollapseError(RuntimeError):
    """The loss scale lies on its floor and the gradients still overflow: no scale can help.

    The collapse was certain at micro-batch ``step``, counted from 0, after so many ``overflows`` in a row at the floor.
    """

    def __init__(self, step: int, overflows: int, minimum: float) -> None:
        self.step, self.overflows, self.minimum = step, overflows, minimum
        super().__init__(
            f"the loss scale collapsed: at step {step} the gradients had overflowed {overflows} times in a row at the "
            f"smallest scale allowed, {minimum:g}; lower the learning rate, clip the gradients, train in bfloat16 "
            "(`amp.dtype`), give groups of layers a scale of their own (`boost.loss_scale_group`) or lower "
            "`loss_scale.minimum`"
        )

    def __reduce__(self) -> tuple[type[ScaleCollapseError], tuple[int, int, float]]:
        # Exceptions pickle as class(*args), and args holds the sentence; a worker process must hand over the numbers.
        return type(self), (self.step, self.overflows, self.minimum)


def collapsed_at(
    overflow: Sequence[bool], scale_after: Sequence[float], minimum: float, collapse_after: int, streak_before: int = 0
) -> tuple[int | None, int]:
    """Return the index of the first step at which the scale has certainly collapsed, or None, and a streak.

    It has after ``collapse_after`` (>= 1) overflows in a row that end at the floor. Both sequences have a drained value
    per step, the scale after its update. The streak counts the consecutive overflows at the floor at the end, including
    ``streak_before``; nothing after the collapse is looked at.

    Example:
        >>> collapsed_at([True, True, True], [2.0, 1.0, 1.0], minimum=1.0, collapse_after=2)
        (2, 2)
        >>> collapsed_at([True, False], [1.0, 1.0], minimum=1.0, collapse_after=2, streak_before=0)
        (None, 0)
    """
    streak = streak_before
    for index, (overflowed, scale) in enumerate(zip(overflow, scale_after, strict=True)):
        streak = streak + 1 if overflowed and scale <= minimum else 0
        if streak >= collapse_after:
            return index, streak
    return None, streak


def unscale_and_check_(grads: Iterable[Tensor | None], inverse_scale: Tensor, found_inf: Tensor) -> Tensor:
    """Multiply every gradient by ``1 / scale`` in place and note whether any of them is inf or NaN, without waiting.

    Gradients are of any floating or complex dtype, dense or sparse (COO), on any devices; None is passed over. The test
    sees the value before the product, which for a scale >= 1 is the same; in float16, whose range a scale below 1 may
    well leave, it sees the product, too. ``found_inf``, float32, is set to 1.0 if anything is not finite, stays 1.0
    once it is, and is returned.

    Example:
        >>> grads = [torch.tensor([256.0]), torch.tensor([float("nan")])]
        >>> unscale_and_check_(grads, torch.tensor(1 / 128), torch.zeros(()))
        tensor(1.)
        >>> grads[0]
        tensor([2.])
    """
    _check_scalar("inverse_scale", inverse_scale)
    _check_scalar("found_inf", found_inf)
    if found_inf.dtype != torch.float32:
        raise TypeError(f"`found_inf` must be float32, got {found_inf.dtype}")
    flag = found_inf.reshape(())
    batches: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    uncoalesced: list[Tensor] = []
    with torch.no_grad():
        for grad in grads:
            if grad is None:
                continue
            values = grad
            if grad.is_sparse:
                values = grad._values()  # the public values() refuses duplicate indices, and coalesce() would copy
                if not grad.is_coalesced():
                    uncoalesced.append(grad)
            if values.is_complex():
                values = torch.view_as_real(values)
            batches.setdefault((values.device, values.dtype), []).append(values)
        for (device, dtype), of_kind in batches.items():
            on_device = inverse_scale.to(device, torch.float32, non_blocking=True).reshape(())
            here = flag if flag.device == device else torch.zeros((), device=device)
            _unscale_alike_(of_kind, here, on_device)
            if dtype == torch.float16:
                _unscale_alike_(of_kind, here, torch.ones_like(on_device))
            if here is not flag:
                flag.copy_(torch.maximum(flag, here.to(flag.device, non_blocking=True)))
        # Duplicate indices are summed by the optimizer, and a float16 sum of finite values may overflow.
        for grad in uncoalesced:
            flag.copy_(torch.maximum(flag, has_overflow([grad]).to(flag)))
    return found_inf


def _unscale_alike_(values: list[Tensor], flag: Tensor, inverse_scale: Tensor) -> None:
    """Unscale tensors of one device and dtype; where torch's kernel does not take it, by way of float32."""
    if devices.unscales(flag.device, values[0].dtype):
        check_and_unscale_(values, flag, inverse_scale)
        return
    begin = 0
    while begin < len(values):
        end, filled = begin + 1, values[begin].numel()
        while end < len(values) and filled + values[end].numel() <= _WIDENED_ELEMENTS:
            filled += values[end].numel()
            end += 1
        wide = [value.float() for value in values[begin:end]]
        check_and_unscale_(wide, flag, inverse_scale)
        torch._foreach_copy_(values[begin:end], wide)
        begin = end


def has_overflow(grads: Iterable[Tensor | None]) -> Tensor:
    """Return whether any gradient is inf or NaN, as a bool tensor of shape ``[]`` on the first one's device.

    Gradients are dense or sparse (COO), None is passed over; without any the flag is False, on the CPU.
    """
    flag: Tensor | None = None
    with torch.no_grad():
        for grad in grads:
            if grad is None:
                continue
            values = real_values(grad)
            if flag is None:
                flag = torch.zeros((), dtype=torch.bool, device=values.device)
            if values.numel():
                # NaN passes through both ends: 15 times faster on a CPU than isfinite().all(), which writes a mask.
                low, high = torch.aminmax(values)
                flag = flag | ~(torch.isfinite(low) & torch.isfinite(high)).to(flag.device, non_blocking=True)
    return torch.zeros((), dtype=torch.bool) if flag is None else flag


def decides_on_device(optimizer: Optimizer) -> bool:
    """Return whether `step_if_finite` can skip this optimizer's step without waiting for the device."""
    return skips_on_device(optimizer) or (_reads_found_inf(optimizer) and not _first_step_needs_host(optimizer))


def step_if_finite(optimizer: Optimizer, found_inf: Tensor) -> None:
    """Apply one update unless the gradients overflowed; weights, state and step counts stay bit-identical then.

    Optimizers with a method ``step_with_found_inf`` are called through it, torch's fused ones get the flag as attribute
    ``found_inf`` and skip inside their kernel, as under ``torch.amp.GradScaler``; hooks of both run on skipped steps,
    too. A fused Adam without hooks is spared the call: its kernel works on cached lists. Any other optimizer makes the
    host read the flag, which a `NonFusedOptimizerWarning` says once, and is not called on a skipped step. Gradients
    are unscaled already; ``found_inf`` is the flag of `unscale_and_check_`, anything but 0 means skip.
    """
    _check_scalar("found_inf", found_inf)
    if skips_on_device(optimizer):
        optimizer.step_with_found_inf(found_inf)
        return
    reads = _reads_found_inf(optimizer)
    if reads and not _first_step_needs_host(optimizer):
        if not step_on_cached_lists(optimizer, found_inf):
            _give_momentum_buffers(optimizer)
            optimizer.found_inf = exact_flag(found_inf)  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
    else:
        if not reads:
            _warn_once(optimizer)
        if found_inf.item() == 0:
            optimizer.step()
        else:
            # Schedulers advance per attempted step; this is how torch notes an attempt. Without it a skip on the very
            # first step makes the scheduler complain that it was stepped before the optimizer.
            mark_stepped(optimizer)


def _reads_found_inf(optimizer: Optimizer) -> bool:
    groups = optimizer.param_groups
    if not all(group.get("fused") for group in groups):  # a group that is not fused would refuse the flag
        return False
    kernel = next((name for kind, name in _FUSED_KERNELS.items() if isinstance(optimizer, kind)), None)
    if kernel is not None:  # torch takes `fused` on trust for devices that it does not know
        first = next((parameter for group in groups for parameter in group["params"]), None)
        if first is not None and not first.is_cpu and not has_fused_kernel(first, kernel):
            return False
    # A copy has lost torch's mark, but not the groups' `fused`: hence the second test.
    return takes_found_inf(optimizer) or isinstance(optimizer, SGD | Adam | Adagrad)


def _first_step_needs_host(optimizer: Optimizer) -> bool:
    """Return whether a fused SGD's coming step must not be skipped on the device.

    Its first step allocates momentum buffers and relies on the kernel to fill them, which a skip leaves undone (torch
    2.13). Zeros cure this (`_give_momentum_buffers`), but with dampening the first step differs from the others.
    """
    return isinstance(optimizer, SGD) and any(
        group["momentum"] != 0 and group["dampening"] != 0 and without_buffer(optimizer, group["params"])
        for group in optimizer.param_groups
    )


def _give_momentum_buffers(optimizer: Optimizer) -> None:
    # momentum * 0 + g = g exactly, so a step from zeros is the first step. This also serves parameters whose first
    # gradient comes later than their neighbours' (frozen until now), which torch's fused SGD cannot begin by itself.
    if isinstance(optimizer, SGD):
        for group in optimizer.param_groups:
            if group["momentum"] != 0:
                for parameter in without_buffer(optimizer, group["params"]):
                    state = optimizer.state[parameter]
                    state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


def without_buffer(optimizer: Optimizer, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters with a gradient that an SGD has no momentum buffer for yet."""
    state, trained = optimizer.state, (parameter for parameter in parameters if parameter.grad is not None)
    # Reading alone would add an entry.
    return [one for one in trained if one not in state or state[one].get("momentum_buffer") is None]


_warned: WeakSet[Optimizer] = WeakSet()


def _warn_once(optimizer: Optimizer) -> None:
    if optimizer in _warned:
        return
    _warned.add(optimizer)
    name = type(optimizer).__name__
    if not _may_be_fused(optimizer):
        advice = ""
    elif isinstance(optimizer, SGD | Adam | Adagrad):
        advice = f"; pass fused=True to {name}"
    else:
        advice = "; use one that accepts fused=True (torch.optim.SGD, Adam, AdamW, Adagrad) and pass fused=True"
    warn(
        f"{name} cannot skip a step on the device, so every step waits for the overflow flag{advice}",
        NonFusedOptimizerWarning,
    )


def _may_be_fused(optimizer: Optimizer) -> bool:
    """Return whether torch's fused kernels, SGD's for example, take what the optimizer trains."""
    return all(
        has_fused_kernel(one, "_fused_sgd_") and not (one.grad is not None and one.grad.is_sparse)
        for one in held_parameters(optimizer)
    )


def _check_scalar(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a tensor of one element, got {type(value).__name__}")
    if value.numel() != 1:
        raise ValueError(f"`{name}` must have one element, got shape {tuple(value.shape)}")
