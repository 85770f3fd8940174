"""A gradient that goes through a border of group loss scales once, and not as part of a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
