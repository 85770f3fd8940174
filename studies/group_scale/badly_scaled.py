"""A net whose gradients differ by 2**44 from layer to layer, although its forward pass fits float16 everywhere.

Three heads predict three quantities that are measured in very different units: multiplied by 2**-22, 1 and 2**22, in
float32, after the float16 part. The loss counts each relative to its unit, so the gradients of the heads differ by the
units' ratio: what lifts the first head's gradients into float16 throws the last one's far out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from workbench import Task

__all__ = ["BadlyScaled", "task"]

POWERS = (-22, 0, 22)
N_FEATURES, N_HIDDEN, BATCH = 8, 16, 64


class Head(nn.Module):
    """Two dense layers and a unit.

    Args:
        power: Binary exponent of the unit.
    """

    def __init__(self, power: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(N_FEATURES, N_HIDDEN), nn.Linear(N_HIDDEN, 1)
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        """Return the prediction in its unit, float32, shape ``[batch, 1]``."""
        out: Tensor = self.out(torch.tanh(self.hidden(x))).float() * 2.0**self.power
        return out


class BadlyScaled(nn.Module):
    """One head per unit."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(power) for power in POWERS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictions, shape ``[batch, heads]``."""
        return torch.cat([head(x) for head in self.heads], dim=1)


class WorstRelativeError(Metric):
    """Mean squared error over the target's mean square, of the worst head: 0 is perfect, 1 as good as predicting 0."""

    higher_is_better = False
    error: Tensor
    square: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("error", torch.zeros(len(POWERS), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("square", torch.zeros(len(POWERS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Add one batch, shapes ``[batch, heads]``."""
        self.error += (predicted.double() - target).square().sum(0)
        self.square += target.double().square().sum(0)

    def compute(self) -> Tensor:
        """Return the error of the worst head."""
        worst: Tensor = (self.error / self.square).max()
        return worst


class UnitLoss(nn.Module):
    """Squared errors, each divided by its unit once: the gradients keep the unit's size."""

    def forward(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the loss, shape ``()``."""
        units = torch.tensor([2.0**power for power in POWERS], device=predicted.device)
        return ((predicted.float() - target).square().mean(0) / units).sum()


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield 16 batches; the same seed gives the same."""
    law = torch.randn(N_FEATURES, len(POWERS), generator=torch.Generator().manual_seed(0)) / N_FEATURES**0.5
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(16):
        x = torch.randn(BATCH, N_FEATURES, generator=generator)
        yield x, torch.tanh(x @ law) * torch.tensor([2.0**power for power in POWERS])


def optimizer(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return Adam, which does not mind the size of a gradient as long as there is one; nor must its eps."""
    return torch.optim.Adam([parameter for _, parameter in named], lr=0.01, eps=1e-30, fused=True)


task = Task(
    name="badly-scaled",
    model=BadlyScaled,
    loss=UnitLoss(),
    optimizer=optimizer,
    train=batches,
    evaluate=lambda seed: batches(seed + 1000),
    metric=WorstRelativeError(),
    direction="minimize",
    data_hash="generated: law 0, seed",
    description="Three regressions in units 2**-22, 1 and 2**22.",
)
