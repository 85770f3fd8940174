"""A small task with what a killed run could get wrong: dropout, BatchNorm, a schedule, an order of the data.

A batch takes its time, so that a training lasts a second or two and yet needs little of the processor.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workbench import Task
from workbench.tasks.batches import ShuffledBatches
from workbench.tasks.schedules import warmup_cosine

BATCH_SECONDS = float(os.environ.get("RELIABILITY_BATCH_SECONDS", "0.03"))
N_FEATURES, N_CLASSES, N_SAMPLES = 12, 4, 512

_draw = torch.Generator().manual_seed(20)
_centres = torch.randn(N_CLASSES, N_FEATURES, generator=_draw)
_classes = torch.randint(N_CLASSES, (N_SAMPLES,), generator=_draw)
_points = _centres[_classes] + 1.5 * torch.randn(N_SAMPLES, N_FEATURES, generator=_draw)


def network() -> nn.Module:
    """Return the network."""
    return nn.Sequential(
        nn.Linear(N_FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 24), nn.ReLU(),
        nn.Linear(24, N_CLASSES),
    )  # fmt: skip


def batches(seed: int) -> Any:
    """Return the training batches of a seed, each of which keeps its reader waiting."""
    shuffled = ShuffledBatches(N_SAMPLES - 128, 32, seed, lambda chosen: (_points[chosen], _classes[chosen]))

    class Waiting:
        def stream(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
            for batch in shuffled.stream(start):
                time.sleep(BATCH_SECONDS)
                yield batch

        def __len__(self) -> int:
            return len(shuffled)

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(shuffled)

    return Waiting()


task = Task(
    name="reliability",
    model=network,
    loss=nn.CrossEntropyLoss(),
    optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    scheduler=functools.partial(warmup_cosine, warmup_share=0.1),
    train=batches,
    evaluate=[(_points[-128:], _classes[-128:])],
    metric="accuracy",
    data_hash="generator 20",
)
