"""DataLoaders: those like another one, of the same batches' samples in the same order, and those over a stream."""

from __future__ import annotations

import multiprocessing
from typing import Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset

_OPTIONS = (
    *("collate_fn", "dataset", "generator", "in_order", "multiprocessing_context", "num_workers", "persistent_workers"),
    *("pin_memory", "prefetch_factor", "timeout", "worker_init_fn"),
)
_IN_PROCESS: dict[str, Any] = {
    "num_workers": 0,
    "persistent_workers": False,
    "pin_memory": False,
    "timeout": 0,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "worker_init_fn": None,
}


def is_plain(source: Any) -> TypeGuard[DataLoader[Any]]:
    """Return whether a source reads as torch's own DataLoader: PyTorch Geometric's does, Accelerate's does not."""
    return isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__


def loader_like(loader: DataLoader[Any], *, in_process: bool = False, **changed: Any) -> DataLoader[Any]:
    """Return a loader that takes its order from the same sampler and generator, with some arguments changed.

    ``in_process`` does without worker processes.
    """
    options: dict[str, Any] = {name: getattr(loader, name) for name in _OPTIONS}
    options |= (_IN_PROCESS if in_process else {}) | changed
    if loader.batch_size is None and loader.batch_sampler is not None:
        return DataLoader(batch_sampler=loader.batch_sampler, **options)
    sampler = None if isinstance(loader.dataset, IterableDataset) else loader.sampler
    return DataLoader(batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last, **options)


def handing_on(stream: IterableDataset[Any], *, forked: bool = False, **options: Any) -> DataLoader[Any]:
    """Return a loader that hands on what a stream yields, as it is, and draws nothing from torch's generator.

    With ``forked``, where this platform `can_fork`, another process reads it, and the stream need not be picklable.
    """
    if forked:
        options |= {"num_workers": 1, "multiprocessing_context": "fork"}
    return DataLoader(stream, batch_size=None, collate_fn=lambda one: one, generator=torch.Generator(), **options)


def can_fork() -> bool:
    """Return whether this platform forks processes."""
    return "fork" in multiprocessing.get_all_start_methods()
