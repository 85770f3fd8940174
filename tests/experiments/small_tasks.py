"""Tasks that train in milliseconds, with every way to go wrong switched on by an argument."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from workbench.tasks import Task

__all__ = ["BATCH_SIZE", "Net", "small_task"]

BATCH_SIZE = 6


class Net(nn.Module):
    """Two layers with BatchNorm and dropout between them, so that statistics and random numbers matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, 2]`` for features ``[n, 4]``."""
        return self.head(self.dropout(torch.tanh(self.norm(self.first(x)))))  # type: ignore[no-any-return]


def small_task(
    *,
    poison_from: int | None = None,
    poison: float = float("nan"),
    fail_at: int | None = None,
    metric: Any = "accuracy",
    model: Callable[[], nn.Module] = Net,
    on_loss: Callable[[int], None] | None = None,
) -> Task:
    """Return a classification of points by the sign of their sum.

    Args:
        poison_from: Training step from which the loss is multiplied by ``poison``.
        poison: That factor.
        fail_at: Training step at which the loss raises.
        metric: Metric of the task.
        model: Model of the task.
        on_loss: Called with the number of each training loss.
    """
    # Of each thread its own: a panel looks at a model of the task while another thread trains one.
    losses = defaultdict[int, int](int)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        step = losses[threading.get_ident()]
        if net.training:
            losses[threading.get_ident()] += 1
            if on_loss is not None:
                on_loss(step)
            if step == fail_at:
                raise ZeroDivisionError("the loss of the user's task failed")
        value = nn.functional.cross_entropy(net(batch[0]), batch[1])
        if net.training and poison_from is not None and step >= poison_from:
            value = value * poison
        return value

    def new_model() -> nn.Module:
        losses[threading.get_ident()] = 0
        return model()

    return Task(
        name="small",
        model=new_model,
        loss=loss,
        optimizer=_sgd,
        train=lambda seed: _points(24, seed),
        evaluate=lambda seed: _points(5, 1000 + seed),
        metric=metric,
        data_hash="points 1",
    )


def _sgd(named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    return SGD(named, lr=0.1, momentum=0.9, fused=True)


def _points(n_batches: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_batches):
        x = torch.randn(BATCH_SIZE, 4, generator=generator)
        yield x, (x.sum(dim=1) > 0).long()
