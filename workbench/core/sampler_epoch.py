"""Samplers that share an epoch's order between ranks have to be told which epoch it is."""

from __future__ import annotations

from typing import Any


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a dataset about to be iterated and of its samplers, if they have it."""
    for holder in (dataset, getattr(dataset, "sampler", None), getattr(dataset, "batch_sampler", None)):
        set_epoch = getattr(holder, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
