"""Parameters by their number and size, with gradients: what an optimizer's step is measured on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Size = tuple[int, int]
"""Numbers in all, and the tensors they are divided into."""

SIZES = ((1_000_000, 60), (1_000_000, 400), (20_000_000, 60))


def parameters_with_gradients(size: Size, device: torch.device, *, seed: int = 0) -> list[nn.Parameter]:
    """Return parameters whose gradients are set; equal calls give equal ones."""
    numbers, tensors = size
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(tensors):
        shape = (numbers // tensors,)
        parameter = nn.Parameter(torch.randn(shape, generator=generator).to(device))
        parameter.grad = (torch.randn(shape, generator=generator) * 1e-2).to(device)
        made.append(parameter)
    return made


def flat_adam(size: Size, device: torch.device, rate: float, eps: float) -> tuple[Tensor, Callable[..., None]]:
    """Return the gradient of so many numbers in one tensor, and torch's kernel of Adam on it, a step at a call."""
    gradient = torch.randn(size[0]).to(device) * 1e-2
    weights, first, second = (torch.zeros_like(gradient) for _ in range(3))
    steps = torch.zeros((), device=device)
    rule = {"lr": rate, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": eps}

    def step(**found_inf: Any) -> None:
        steps.add_(1)
        state = ([weights], [gradient], [first], [second], [], [steps])
        torch._fused_adam_(*state, **rule, amsgrad=False, maximize=False, **found_inf)

    return gradient, step


def words(size: Size) -> str:
    """Return a size in words: ``"1 M in 60"``."""
    numbers, tensors = size
    return f"{numbers / 1e6:g} M in {tensors}" if numbers >= 100_000 else f"{numbers} in {tensors}"
