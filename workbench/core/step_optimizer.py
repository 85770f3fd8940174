"""What a training step and an optimizer of this package exchange beyond torch's own interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core.records import EventSink


class SkipsOnDevice(Protocol):
    """An optimizer that decides for itself whether an overflow skips the step; no device is waited for."""

    def step_with_found_inf(self, found_inf: Tensor) -> object:
        """Step unless ``found_inf`` (one element, float32) is not 0."""
        ...


class StepOptimizer(Optimizer, ABC):
    """Base of this package's optimizers that skip on the device; the hooks of the training step do nothing by default.

    ``found_inf`` is torch's convention: while ``step`` runs, a flag of one element; unless it is 0, nothing may change.
    """

    found_inf: Tensor | None = None

    @property
    def has_own_rates(self) -> bool:
        """Whether its learning rate was given step by step, or as a function of it, which overrides all others."""
        return False

    @property
    def carried_scale(self) -> Tensor | None:
        """The loss scale that ``torch.amp.GradScaler`` has left in the gradients, in torch's attribute ``grad_scale``.

        Only for classes that set ``_step_supports_amp_scaling``; for others it unscales, and waits.
        """
        return getattr(self, "grad_scale", None)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the loss of a closure that evaluates the model again."""
        loss = loss_of(closure)
        self._step()
        return loss

    @abstractmethod
    def _step(self) -> None: ...

    def step_with_found_inf(self, found_inf: Tensor) -> None:
        """Step unless ``found_inf`` (one element, float32) is not 0; step hooks run either way."""
        self.found_inf = found_inf
        try:
            self.step()
        finally:
            del self.found_inf

    def set_step_context(
        self,
        *,
        backward_scale: Callable[[nn.Parameter], Tensor] | Tensor | float | None = None,
        step: int | None = None,
        events: EventSink | None = None,
    ) -> None:
        """Take what only the training step knows, before every step that it concerns.

        Args:
            backward_scale: Loss scale that the backward pass carried though the gradients no longer do: a number, a
                tensor of one element, or a function of the parameter; None when gradients are as it left them.
            step: Number of the step for events; None for the optimizer's own count.
            events: Where events go.
        """

    def columns(self) -> Mapping[str, float]:
        """Return what the host knows of the last step, for the trace, by namespaced column."""
        return {}

    def unscale_offloaded_(self, scale_of: Callable[[nn.Parameter], Tensor], found_inf: Tensor) -> None:
        """Unscale gradients that have already left ``.grad``, and set ``found_inf`` to 1.0 if one is not finite.

        Args:
            scale_of: Gives the scale of a parameter's gradient, one element.
            found_inf: Flag, float32, one element.
        """

    def over_groups(self, groups: Sequence[dict[str, Any]]) -> Optimizer | None:
        """Return an optimizer like this one over other parameter groups; None where class and defaults suffice."""


def held_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return everything that an optimizer trains, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def skips_on_device(optimizer: Optimizer) -> TypeGuard[SkipsOnDevice]:
    """Return whether an optimizer, ours or a user's, has a step that takes the overflow flag."""
    return hasattr(optimizer, "step_with_found_inf")


def clear_gradients(optimizer: Optimizer) -> None:
    """Set all gradients to None as ``zero_grad`` does, where it is torch's own in a sixth of its time."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in optimizer.__dict__:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def scale_rates(groups: Iterable[dict[str, Any]], factor: float) -> None:
    """Multiply the learning rates of parameter groups, those that a scheduler begins with among them."""
    for group in groups:
        group |= {name: group[name] * factor for name in ("lr", "initial_lr") if name in group}


def exact_flag(found_inf: Tensor) -> Tensor:
    """Return a flag that is exactly 0 or 1, of shape ``()``, as torch's kernels want it.

    They advance the counts of steps before they look at the flag, and then subtract it.
    """
    with torch.no_grad():
        return (found_inf.reshape(()) != 0).to(torch.float32)


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """Return the loss of a closure that evaluates the model again; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def zeros_in(state: dict[str, Any], parameter: Tensor, name: str) -> Tensor:
    """Return a tensor of a parameter's state that starts as zeros, laid out as the parameter."""
    if name not in state:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    tensor: Tensor = state[name]
    return tensor
