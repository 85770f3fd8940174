"""Parameters and gradients for optimizers to step on, the same for a seed and a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["give_gradients", "parameters"]

SHAPES = ((4, 3), (40,), (), (5,))


def parameters() -> list[nn.Parameter]:
    """Return a matrix, two vectors and a number."""
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(
    params: Sequence[nn.Parameter], step: int, bad: float | None = None, without: tuple[int, ...] = ()
) -> None:
    """Give each parameter the gradient of a step; ``bad`` stands in the second one, and some get none."""
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if number in without else gradient
    if bad is not None:
        assert params[1].grad is not None
        params[1].grad[7] = bad
