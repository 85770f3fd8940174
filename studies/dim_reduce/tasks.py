"""``digits-lenet`` judged by the mean loss over its whole training set, which is what DimReduce is asked to lower.

Network, loss, data and optimizer are those of ``digits-lenet``; ``batch_128`` differs in the batch size alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor

from workbench.tasks import Task
from workbench.tasks.batches import ShuffledBatches
from workbench.tasks.digits import digits_lenet, load_images, split_indices


def training_loss() -> Task:
    """Return digits-lenet, batches of 32, judged by its training loss."""
    return dataclasses.replace(
        digits_lenet(), name="digits-lenet (training loss)", evaluate=_training_images, metric="loss"
    )


def training_loss_batch_128() -> Task:
    """Return the same with batches of 128."""
    return dataclasses.replace(training_loss(), name="digits-lenet (training loss, batch 128)", train=_batches_of_128)


def constant_rate() -> Task:
    """Return ``training_loss`` without its schedule: what momentum alone does outside a subspace that has no inside."""
    return dataclasses.replace(training_loss(), name="digits-lenet (training loss, constant rate)", scheduler=None)


def constant_rate_batch_128() -> Task:
    """Return the same with batches of 128."""
    return dataclasses.replace(
        training_loss_batch_128(), name="digits-lenet (constant rate, batch 128)", scheduler=None
    )


def _training_set(seed: int) -> tuple[Tensor, Tensor]:
    images, targets = load_images()
    chosen, _ = split_indices(targets, seed)
    return images[chosen], targets[chosen]


def _training_images(seed: int) -> Iterable[tuple[Tensor, Tensor]]:
    return [_training_set(seed)]


def _batches_of_128(seed: int) -> ShuffledBatches:
    images, targets = _training_set(seed)
    return ShuffledBatches(len(targets), 128, seed, lambda indices: (images[indices], targets[indices]))
