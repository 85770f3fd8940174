"""Residual networks and made-up colour images of CIFAR's shape, for benchmarks: what an image shows costs no time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from workbench.tasks import Task
from workbench.tasks.digits import ResNet

__all__ = ["Batch", "copies", "image_batches", "image_task", "residual_net", "sgd", "train_once"]

Batch = tuple[Tensor, Tensor]
"""Images, float32 ``[n, 3, side, side]``, and their classes, int64 ``[n]``."""

_DISTINCT_BATCHES = 4


def residual_net(widths: tuple[int, ...] = (16, 32, 64), n_blocks: int = 3) -> ResNet:
    """Return a residual network for colour images; ResNet-20 by default.

    Args:
        widths: Channels per stage.
        n_blocks: Blocks of two convolutions per stage.
    """
    model = ResNet(widths, n_blocks)
    model.conv1 = nn.Conv2d(3, widths[0], kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def image_batches(batch: int, side: int, device: torch.device) -> list[Batch]:
    """Return a few batches of noise.

    Args:
        batch: Images per batch.
        side: Height and width, pixels.
        device: Where they lie.
    """
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(batch, 3, side, side, generator=generator).to(device),
            torch.randint(0, 10, (batch,), generator=generator).to(device),
        )
        for _ in range(_DISTINCT_BATCHES)
    ]


def image_task(model: Callable[[], nn.Module], batch: int, side: int) -> Task:
    """Return a task of such images.

    Args:
        model: Makes the network.
        batch: Images per batch.
        side: Height and width, pixels.
    """
    batches = image_batches(batch, side, torch.device("cpu"))
    return Task(
        name="made-up images",
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=sgd,
        train=batches,
        evaluate=batches[:1],
        metric="accuracy",
    )


sgd: Callable[..., Optimizer] = partial(SGD, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
"""The optimizer of every side."""


def copies(model: nn.Module, number: int) -> list[nn.Module]:
    """Return equal networks that share nothing."""
    return [copy.deepcopy(model) for _ in range(number)]


def train_once(model: nn.Module, optimizer: Optimizer, batch: Batch) -> None:
    """Do a plain step, as everyone writes it."""
    images, classes = batch
    F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
