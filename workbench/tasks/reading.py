"""Other ways to read the same training batches: from samples that stay on the device, or ahead of the training.

Both give the batches of the source, bit for bit and in its order, or leave the source alone and warn why. Ahead of the
training a *process* reads, not a thread: the process's random number generators are swapped for the stream's own while
a source produces (``workbench.tasks.batches``), and the training draws from them at the same time.
"""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from workbench.core.batch import move_batch
from workbench.core.warning import warn
from workbench.tasks.batches import ShuffledBatches, opened_once
from workbench.tasks.kept_samples import NotKeptError, keeping, over_numbers, reading_seconds, why_not_kept

_WORTH_READING = 0.05  # share of a step that reading takes
_FEWEST_EPOCHS = 2.0
_AHEAD = 4  # batches: enough to even out a slow one, few enough to hold twice


def resident(source: Any, device: torch.device) -> Any:
    """Return a source of the same batches whose samples lie on the device, moved there once.

    Possible for a list, `ShuffledBatches` with ``held``, a ``DataLoader`` and a function of a seed that returns one.
    Samples of a data set other than a ``TensorDataset`` stay in the host's memory, each once it has been read.
    """
    once = opened_once(source)
    if once is not None:

        @functools.lru_cache(maxsize=1)  # what is kept is good for several streams
        def resident_of(seed: int) -> Any:
            opened = once(seed)
            is_source = isinstance(opened, Iterable) and not isinstance(opened, Tensor | str | bytes)
            return resident(opened, device) if is_source else opened

        return resident_of
    if isinstance(source, list | tuple):
        return [move_batch(batch, device) for batch in source]
    if isinstance(source, ShuffledBatches) and source.held is not None:
        return source.on(device)
    if type(source) is not DataLoader:
        warn(
            f"`runtime.data` = resident has no effect: how {type(source).__name__} makes its batches is not known; "
            "give a list, a DataLoader, or ShuffledBatches with `held`"
        )
        return source
    if (tensors := _tensors_of(source)) is not None:
        return _gathering(source, tuple(move_batch(tensors, device)))
    try:
        return keeping(source)
    except NotKeptError as why:
        warn(f"`runtime.data` = resident has no effect, because samples cannot be kept: {why}")
        return source


def gain_of_memory(
    source: Any, seed: int, device: torch.device, *, batch_size: int, step_seconds: float, epochs: float
) -> tuple[bool, str]:
    """Return whether `resident` may make steps faster, and a sentence where it would but for something; else empty.

    It makes batches otherwise than the source where that picks samples one by one, or holds them on the host. Samples
    that have to be read must take a good part of a step, and be read again in a training of so many ``epochs``.
    """
    once = opened_once(source)
    opened = source if once is None else once(seed)
    if type(opened) is not DataLoader:
        is_held = isinstance(opened, list | tuple) or (isinstance(opened, ShuffledBatches) and opened.held is not None)
        return device.type != "cpu" and is_held, ""
    if _tensors_of(opened) is not None:
        return True, ""
    try:
        seconds = reading_seconds(opened)
    except NotKeptError:
        return False, ""
    share = seconds * batch_size / step_seconds
    if share < _WORTH_READING:
        return False, ""
    why_not = "most are read once in a training" if epochs < _FEWEST_EPOCHS else why_not_kept(opened, seconds)
    takes = f"Reading them takes about {min(100 * share, 100):.0f} % of a step"
    sentence = (
        f"Samples kept in memory are left out, because {why_not}. {takes}, which `num_workers` of the loader may hide."
    )
    return not why_not, why_not and sentence


def _tensors_of(source: Any) -> tuple[Tensor, ...] | None:
    """Return what a loader's batches are rows of; None where they may be anything."""
    if type(source) is not DataLoader or source.batch_size is None or source.collate_fn is not default_collate:
        return None
    return _rows_of(source.dataset)


def _rows_of(dataset: Any) -> tuple[Tensor, ...] | None:
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (rows := _rows_of(dataset.dataset)) is not None:
        chosen = torch.as_tensor(list(dataset.indices), dtype=torch.int64, device="cpu")
        return tuple(tensor[chosen.to(tensor.device)] for tensor in rows)
    return None


def _gathering(loader: DataLoader[Any], tensors: tuple[Tensor, ...]) -> DataLoader[Any]:
    """Return a loader of the same batches that gathers all rows of one at once."""

    def batch_of(numbers: list[int]) -> list[Tensor]:
        chosen = move_batch(torch.tensor(numbers, device="cpu"), tensors[0].device)
        return [tensor[chosen] for tensor in tensors]

    return over_numbers(loader, len(tensors[0]), batch_of)


@dataclass
class _Stream(IterableDataset[Any]):
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def read_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a stream that another process reads, forked so that sources need not be picklable.

    Where it cannot (a source on an accelerator, or with processes of its own, which read ahead already) a warning says
    why, and they are read here.
    """
    try:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise RuntimeError("this platform does not fork processes")
        reader: Any = DataLoader(
            _Stream(batches),
            batch_size=None,
            collate_fn=lambda batch: batch,
            num_workers=1,
            prefetch_factor=_AHEAD,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # or the loader would draw from the training's
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)  # of fork
            stream = iter(reader)
        first = next(stream)
    except Exception as error:  # the source's own trouble comes back below, from where it can be seen
        said = str(error).strip().splitlines() or [type(error).__name__]
        warn(f"`runtime.data` = prefetch has no effect: {said[-1]}")
        yield from batches
        return
    yield first
    yield from stream
