"""Parameters by their number and size, with gradients: what an optimizer's step is measured on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Size", "flat_tensors", "parameters_with_gradients", "words"]

Size = tuple[int, int]
"""Numbers in all, and the tensors they are divided into."""


def parameters_with_gradients(size: Size, device: torch.device, *, seed: int = 0) -> list[nn.Parameter]:
    """Return parameters whose gradients are set; equal calls give equal ones.

    Args:
        size: How many numbers, in how many tensors.
        device: Where they lie.
        seed: Seed of weights and gradients.
    """
    numbers, tensors = size
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(tensors):
        shape = (numbers // tensors,)
        parameter = nn.Parameter(torch.randn(shape, generator=generator).to(device))
        parameter.grad = (torch.randn(shape, generator=generator) * 1e-2).to(device)
        made.append(parameter)
    return made


def flat_tensors(size: Size, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights, gradients and both moments of Adam as one tensor each, shape ``[numbers]``."""
    gradient = torch.randn(size[0]).to(device) * 1e-2
    return torch.zeros_like(gradient), gradient, torch.zeros_like(gradient), torch.zeros_like(gradient)


def words(size: Size) -> str:
    """Return a size in words: ``"1 M in 60"``."""
    numbers, tensors = size
    return f"{numbers / 1e6:g} M in {tensors}" if numbers >= 100_000 else f"{numbers} in {tensors}"
