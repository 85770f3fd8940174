"""What comes after the backward pass of a loss-scaled step: how long does it take beside torch's GradScaler?

The finite check, the unscaling, Adam and the rule of the scale. Both sides work on the same gradients again and again;
their scale is 1, or gradients would shrink from call to call. The guard lets both sides unscale fresh gradients, skip
an overflow and go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Adam

from workbench.bench.benchmark import Finding, Request
from workbench.bench.contest import (
    Side,
    Sides,
    contest,
    require_equal,
)
from workbench.loss_scale import DynamicLossScaleUpdateCell
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.weight_update import CompleteWindow, PlainUpdate

from .many_tensors import (
    Size,
    flat_tensors,
    parameters_with_gradients,
    words,
)

__all__ = ["ScaledTail", "measure_optimizer_tail"]

_RATE = 1e-4
_NEVER = 10**9  # steps: the scale of a measured side does not grow
_SIZES = ((1_000_000, 60), (1_000_000, 400), (20_000_000, 60))
_GOALS = (0.53, 0.25, 0.87)


def measure_optimizer_tail(
    request: Request, *, sizes: Sequence[Size] = _SIZES, goals: Sequence[float | None] = _GOALS
) -> list[Finding]:
    """Measure the tail of a scaled step as a multiple of GradScaler's with fused Adam.

    Args:
        request: What is asked for.
        sizes: Numbers and tensors of the parameters.
        goals: One per size; they hold for one thread and for all.
    """
    found: list[Finding] = []
    device = request.chosen_device()
    for threads in request.each_thread_count():
        for size, goal in zip(sizes, goals, strict=True):
            found += contest(
                f"scaled tail, {words(size)}, {threads}",
                lambda size=size: Sides(  # type: ignore[misc]
                    ScaledTail(parameters_with_gradients(size, device)),
                    _StockTail(parameters_with_gradients(size, device)),
                    _flat_tail(size, device),
                ),
                rounds=request.rounds,
                named="GradScaler + Adam(fused)",
                goal=goal,
                guard=lambda size=size: _compare(size, device),  # type: ignore[misc]
                note="limit: the same kernels on one flat tensor",
                device=device,
            )
    return found


class ScaledTail:
    """Ours, as `workbench.training.Boosted` does it at the end of a window.

    Args:
        parameters: With gradients.
        scale: Of these gradients.
        window: Finite steps after which the scale grows.
    """

    def __init__(self, parameters: list[nn.Parameter], scale: float = 1.0, window: int = _NEVER) -> None:
        device = parameters[0].device
        self.parameters = parameters
        self.optimizer = Adam(parameters, lr=_RATE, fused=True)
        cell = DynamicLossScaleUpdateCell(scale, 2, window)
        self.scaling = LossScaling(scale, cell, drop_overflow_update=True, device=device)
        self._update = PlainUpdate()
        self._found_inf = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)
        self._loss = torch.zeros((), device=device)

    def __call__(self) -> None:
        """Unscale, check, step unless there was an overflow, move the scale."""
        self._found_inf.zero_()
        self.scaling.unscale_(self.parameters, self._found_inf)
        overflow = self._found_inf > 0
        self._update(
            CompleteWindow(0, self.optimizer, self._loss, self._found_inf, self._one, None, None, self.scaling.scale_of)
        )
        self.scaling.after_window(overflow)


class _StockTail:
    def __init__(self, parameters: list[nn.Parameter], scale: float = 1.0, window: int = _NEVER) -> None:
        device = parameters[0].device
        self.parameters = parameters
        self.optimizer = Adam(parameters, lr=_RATE, fused=True)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=scale, growth_interval=window)
        self.scaler.scale(torch.zeros((), device=device))  # it makes its scale when it is first used

    def __call__(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _flat_tail(size: Size, device: torch.device) -> Side:
    weights, gradient, first, second = flat_tensors(size, device)
    steps, one, found_inf = (torch.full((), value, device=device) for value in (0.0, 1.0, 0.0))

    def tail() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found_inf, one)
        steps.add_(1)
        torch._fused_adam_(
            [weights],
            [gradient],
            [first],
            [second],
            [],
            [steps],
            lr=_RATE,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )

    return tail


def _compare(size: Size, device: torch.device) -> None:
    scale = 1024.0
    ours = ScaledTail(parameters_with_gradients(size, device), scale, 2)
    stock = _StockTail(parameters_with_gradients(size, device), scale, 2)
    for step in range(5):
        fresh = parameters_with_gradients(size, device, seed=step)
        for side in (ours, stock):
            factor = side.scaling.scale if isinstance(side, ScaledTail) else side.scaler.get_scale()
            for parameter, source in zip(side.parameters, fresh, strict=True):
                assert source.grad is not None  # they are made so
                parameter.grad = source.grad * factor
            if step == 3:
                last = side.parameters[-1].grad
                assert last is not None  # set above
                last[-1] = math.inf
            side()
    for number, (one, other) in enumerate(zip(ours.parameters, stock.parameters, strict=True)):
        require_equal(one, other, f"parameter {number} after 5 steps", rtol=1e-6, atol=1e-7)
    require_equal(ours.scaling.scale, torch.tensor(stock.scaler.get_scale()), "loss scale", rtol=0.0, atol=0.0)
