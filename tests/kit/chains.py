"""Chains of layers that can be cut into freezing groups, batches for them, and the loss of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def chain(n_layers: int = 15, *, n_in: int = 4, n_out: int = 2, width: int = 6, seed: int = 0) -> nn.Sequential:
    """Return linear layers without bias and tanh in turn, and a linear head; the same weights for a seed."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i in range(n_layers):
        layers += [nn.Linear(n_in if i == 0 else width, width, bias=False), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, n_out))


def pairs(n: int, size: int = 8, *, n_in: int = 4, n_out: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Return batches of random inputs and targets, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, n_in, generator=generator), torch.randn(size, n_out, generator=generator)) for _ in range(n)
    ]


def mean_square(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean squared error on a batch of `pairs`."""
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    """Compare parameters and buffers bit for bit, whatever their names."""
    for here, there in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(here, there)
