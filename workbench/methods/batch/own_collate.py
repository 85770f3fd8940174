"""Larger batches made by the loader's own ``collate_fn``, which knows how to pad texts or to draw pairs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import default_collate

from workbench.core.batch import move_batch
from workbench.core.loader import is_plain, loader_like


@dataclass(frozen=True, slots=True)
class Uncollated:
    """The samples of a batch, for a batch of several such."""

    samples: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    device: str | torch.device = "cpu"

    def __reduce__(self) -> Any:
        """Go to another process by value: each sample in shared memory takes a file or two, of which there are few."""
        return _received, (pickle.dumps((self.samples, self.collate, self.device)),)

    def to(self, device: str | torch.device) -> Uncollated:
        """Return samples whose batch will be on a device."""
        return replace(self, device=device)

    def joined(self, batches: Sequence[Uncollated]) -> Any:
        """Return the one batch of all samples."""
        return move_batch(self.collate([sample for batch in batches for sample in batch.samples]), self.device)


def _received(content: bytes) -> Uncollated:
    return Uncollated(*pickle.loads(content))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Keeps the samples as they are; a class, since workers may be sent it."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Uncollated:
        return Uncollated(samples, self.collate)


def uncollated(loader: Any) -> Any:
    """Return a loader of `Uncollated` batches, if it is one that makes batches in a way of its own."""
    if not is_plain(loader) or loader.batch_sampler is None or loader.collate_fn is default_collate:
        return loader
    return loader_like(loader, collate_fn=_Kept(loader.collate_fn))
