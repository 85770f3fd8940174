"""How the gradients of a complete window become new weights: the optimizer's step, or what a method puts in its place.

Overflow, unscaling and the reduction over ranks are done when an update is asked for; only the update itself remains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.optim import SGD, Optimizer

from workbench.core.records import EventSink
from workbench.core.step_optimizer import StepOptimizer, skips_on_device
from workbench.loss_scale import decides_on_device, step_if_finite
from workbench.loss_scale.overflow import without_buffer


class CompleteWindow(NamedTuple):
    """What an update may look at; the gradients lie in ``.grad``, averaged over window and ranks."""

    step: int  # micro-batch index, counted from 0
    optimizer: Optimizer  # the one that steps now; it may be that of one group of layers
    loss: Tensor  # unscaled, of the last micro-batch on this rank, shape ()
    #: 1 when a gradient is not finite, so that nothing may change; float32, shape (). None when that was not looked at:
    #: the update is applied whatever the gradients are.
    found_inf: Tensor | None
    #: What the gradients still carry as a factor, shape (); 1 unless a train-one-step module was given ``sens``.
    gradient_scale: Tensor
    #: Computes the loss of the last micro-batch at the weights as they are; None when step() was given no closure.
    evaluate: Callable[[], Tensor] | None
    events: EventSink | None  # where notable events go; None when nothing listens
    #: Gives the loss scale that the backward pass carried where a parameter is used and that its gradient no longer
    #: does, shape (); None when gradients are as the backward pass left them.
    backward_scale: Callable[[nn.Parameter], Tensor] | None = None


_FEWEST = 24
"""Tensors below which torch's fused Adam by itself is as quick as its kernel on cached lists."""


class WeightUpdate(ABC):
    """Changes the weights at the end of a window; a subclass defines what differs from an optimizer's step."""

    #: Why ``distribute`` must give every rank the first one's weights before the first update; "" if it need not.
    needs_distribute: str = ""
    #: Why the model cannot be in a DistributedDataParallel; "" if it can.
    refuses_ddp: str = ""
    #: Whether gradients are averaged before the update, and among which ranks (None: all).
    averages_gradients: bool = True
    server_group: distributed.ProcessGroup | None = None
    #: Whether a learning-rate schedule may change the optimizer's rate.
    takes_schedule: bool = True

    @abstractmethod
    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Update the weights, or leave them, their optimizer and the method alone where ``found_inf`` is set.

        Returns numbers for the trace that the host knows, by namespaced column; none for most.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what the next update depends on apart from the optimizer."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  # most have nothing to restore
        """Continue exactly where ``state_dict`` was taken."""


class PlainUpdate(WeightUpdate):
    """The optimizer's own step, skipped on the device where the optimizer can."""

    _complete: tuple[object, int] = (None, 0)  # an SGD's state once it had every buffer, and its length

    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Let the optimizer step."""
        optimizer = window.optimizer
        ours = optimizer if isinstance(optimizer, StepOptimizer) else None
        if ours is not None:
            ours.set_step_context(backward_scale=window.backward_scale, step=window.step, events=window.events)
        if window.found_inf is not None:
            step_if_finite(optimizer, window.found_inf)
        elif self._profits_from_flag(optimizer):
            step_if_finite(optimizer, torch.zeros_like(window.gradient_scale))
        else:
            optimizer.step()
        return {} if ours is None else ours.columns()

    def _profits_from_flag(self, optimizer: Optimizer) -> bool:
        """Return whether a step under a flag that is never set is better than the optimizer's own."""
        groups = optimizer.param_groups
        if not all(group.get("fused") for group in groups):  # asked in every step, so the quickest answer first
            return False
        n_tensors, state = sum(len(group["params"]) for group in groups), optimizer.state
        is_sgd = isinstance(optimizer, SGD)
        if is_sgd and state is self._complete[0] and n_tensors == self._complete[1]:
            return False
        if not is_sgd and n_tensors < _FEWEST:
            return False
        if skips_on_device(optimizer) or not decides_on_device(optimizer):
            return False
        if not is_sgd:
            return True
        # Fused SGD (torch 2.13) fails when a parameter's first gradient comes later than the others', as it does where
        # layers rest at first; step_if_finite prepares the buffers. Once all are there, nothing is gained.
        with_momentum = [group["params"] for group in groups if group["momentum"] != 0]
        if any(without_buffer(optimizer, parameters) for parameters in with_momentum):
            return True
        if len(state) >= sum(map(len, with_momentum)):
            self._complete = state, n_tensors
        return False
