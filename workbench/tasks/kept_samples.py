"""The samples of a data set, read once and kept: the batches of a DataLoader without reading them again and again.

A data set is code of the user's, so whether it gives the same sample at every reading is tried, not known: reading some
may not draw from the global generators of random numbers, and the same ones, read again, have to be equal. What worker
processes read today is tried in one, too: a file that reading opened here would be open, at one place, in all that are
forked later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from workbench.core.batch import entries_of, with_entries
from workbench.core.devices import free_host_memory
from workbench.core.loader import can_fork, handing_on, loader_like
from workbench.core.open_files import held_file
from workbench.core.own_generators import kept_generators, seed_generators
from workbench.core.text import first_line
from workbench.tasks.batches import digest_of_batches

_TRIED = 16  # samples that are read twice in a look at a task, or as many as can be read in so much time
_TRIED_SECONDS = 0.5
_TRIED_IN_A_RUN = 4
_MOST_MEMORY = 0.25  # of what is free, since several runs may train at a time

_R = TypeVar("_R")


class NotKeptError(Exception):
    """Samples cannot be kept: why, to stand after "because"."""


def look_at_reading(loader: DataLoader[Any]) -> tuple[float, str]:
    """Return what reading a sample takes, seconds, and why samples cannot be kept, to stand after "because".

    The latter is empty where they can. A NotKeptError says why they cannot be read.
    """

    def look() -> tuple[float, str]:
        seconds = reading_seconds(loader)
        return seconds, why_not_kept(loader, seconds)

    return _where_it_is_read(loader, look)


def _where_it_is_read(loader: DataLoader[Any], look: Callable[[], _R]) -> _R:
    """Return what a function that reads samples returns: here, or in a process where such read them today."""
    if not loader.num_workers:
        return look()
    if loader.worker_init_fn is not None:
        raise NotKeptError("the loader prepares the worker processes that read them")
    if not can_fork():
        raise NotKeptError("worker processes read them, and this platform forks none")
    answer, why_not = next(iter(handing_on(_Asked(look, loader.dataset), forked=True)))
    if why_not:
        raise NotKeptError(why_not)
    return answer  # type: ignore[no-any-return]  # what was asked for


@dataclass
class _Asked(IterableDataset[Any]):
    look: Callable[[], Any]
    dataset: Any

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        """Yield one answer, and why it is none."""
        try:
            answer, why_held = self.look(), held_file(self.dataset)
        except NotKeptError as why:
            yield None, str(why)
            return
        yield answer, f"the data set may hold an open file by then ({why_held})" if why_held else ""


def reading_seconds(loader: DataLoader[Any]) -> float:
    """Return what reading a sample takes in this process, seconds; a NotKeptError says why it cannot be read."""
    began, n_read = time.perf_counter(), 0
    with kept_generators(torch.device("cpu")):
        for n_read, at in enumerate(_some(loader, _TRIED), start=1):  # noqa: B007
            _read_one(loader.dataset, at)
            if time.perf_counter() - began > _TRIED_SECONDS:
                break
    return (time.perf_counter() - began) / n_read


def why_not_kept(loader: DataLoader[Any], seconds: float) -> str:
    """Return why samples cannot be read once and kept, to stand after "because"; empty where they can.

    As far as some show, which are read twice, each in so many ``seconds``.
    """
    try:
        _try(loader, min(max(round(_TRIED_SECONDS / max(seconds, 1e-9)), _TRIED_IN_A_RUN), _TRIED))
    except NotKeptError as why:
        return str(why)
    return ""


def keeping(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of the same batches, bit for bit, that reads each sample once and keeps it in the host's memory.

    A NotKeptError says why this cannot be done.
    """
    _where_it_is_read(loader, lambda: _try(loader, _TRIED_IN_A_RUN))
    samples = _KeptSamples(loader)
    return over_numbers(loader, samples.n_samples, samples.batch_of)


class _KeptSamples:
    """Makes batches of samples that it reads when they are first asked for.

    As soon as it has all, and torch's own ``default_collate`` makes the batches, these are rows of tensors if all have
    one shape. Anything else that makes batches gets copies of the samples, which it may change.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        dataset: Any = loader.dataset
        self._dataset, self.n_samples = dataset, len(dataset)
        self._collate = loader.collate_fn
        self._kept: dict[int, Any] = {}
        self._may_stack = self._collate is default_collate
        self._stacked: Any = None

    def batch_of(self, keys: list[Any]) -> Any:
        """Return the batch of what a sampler has drawn."""
        try:
            numbers = [range(self.n_samples)[index(key)] for key in keys]
        except (TypeError, IndexError):  # of a sampler that knows the data set
            return self._collate([self._dataset[key] for key in keys])
        if self._stacked is None:
            batch = self._collate([self._sample(at) for at in numbers])
            if self._may_stack and len(self._kept) == self.n_samples:
                self._stack()
            return batch
        return _rows(self._stacked, numbers, torch.tensor(numbers, device="cpu"))

    def _stack(self) -> None:
        self._may_stack = False
        with suppress(RuntimeError):  # of several shapes
            self._stacked = default_collate([self._kept[at] for at in range(self.n_samples)])
            self._kept.clear()

    def _sample(self, number: int) -> Any:
        if number not in self._kept:
            sample = self._dataset[number]
            with suppress(NotKeptError):
                self._kept[number] = _copied(sample)
            return sample
        kept = self._kept[number]
        return kept if self._collate is default_collate else _copied(kept)


@dataclass(frozen=True, slots=True)
class _Numbers(Dataset[Any]):
    """Gives what it is asked for: the number of a sample, or another key."""

    n_samples: int

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, key: Any) -> Any:
        return key


def over_numbers(loader: DataLoader[Any], n_samples: int, batch_of: Callable[[list[Any]], Any]) -> DataLoader[Any]:
    """Return a loader that draws the same random numbers, and leaves it to a function to make a batch of numbers."""
    return loader_like(loader, dataset=_Numbers(n_samples), collate_fn=batch_of, in_process=True)


def _some(loader: DataLoader[Any], n_tried: int) -> list[int]:
    """Return the numbers of some samples, evenly spread."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or loader.batch_sampler is None:
        raise NotKeptError("the loader reads a stream")
    try:
        n_samples = len(dataset)
    except TypeError as error:
        raise NotKeptError("the data set does not know its length") from error
    if n_samples < 1:
        raise NotKeptError("there are none")
    return sorted({round(at) for at in np.linspace(0, n_samples - 1, min(n_tried, n_samples)).tolist()})


def _try(loader: DataLoader[Any], n_tried: int) -> None:
    dataset: Any = loader.dataset
    chosen = _some(loader, n_tried)
    if callable(getattr(dataset, "set_epoch", None)):
        raise NotKeptError("the data set has a `set_epoch`, so its samples may change from epoch to epoch")
    with kept_generators(torch.device("cpu")):
        samples, again = (_read_undrawn(dataset, chosen, seed) for seed in (1, 2))
    if digest_of_batches(samples) != digest_of_batches(again):
        raise NotKeptError("one that is read twice differs")
    memory = free_host_memory()
    needed = len(dataset) * sum(map(_bytes_of, samples)) / len(samples)
    if needed > _MOST_MEMORY * memory:
        raise NotKeptError(f"they would take about {needed / 1e9:.1f} of {memory / 1e9:.1f} GB of memory that are free")


def _read_undrawn(dataset: Any, chosen: Sequence[int], seed: int) -> list[Any]:
    """Return samples, where no random number is drawn for them."""
    seed_generators(seed)
    undrawn = _drawn()
    seed_generators(seed)
    samples = [_copied(_read_one(dataset, at)) for at in chosen]
    if _drawn() != undrawn:
        raise NotKeptError("random numbers are drawn when one is read")
    return samples


def _read_one(dataset: Any, at: int) -> Any:
    try:
        return dataset[at]
    except Exception as error:  # code of the user's
        raise NotKeptError(f"reading one by its number fails ({type(error).__name__}: {first_line(error)})") from error


def _drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.random()), random.random()  # noqa: NPY002  # the global one


def _copied(part: Any) -> Any:
    """Return a copy of a sample, or of a part of one: neither a data set nor who makes batches can change it."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, np.ndarray) and not part.dtype.hasobject:
        return part.copy()
    if part is None or isinstance(part, str | bytes | bool | int | float | np.generic):
        return part
    if type(part) is list and all(type(entry) is int for entry in part):  # tokens: many, and quickly
        return part.copy()
    entries = entries_of(part)
    if entries is None:
        raise NotKeptError(f"they hold a {type(part).__name__}, of which no copy can be made or compared")
    return with_entries(part, [_copied(entry) for entry in entries.values()])


def _bytes_of(part: Any) -> int:
    if isinstance(part, Tensor | np.ndarray):
        return int(part.nbytes)
    entries = entries_of(part)
    return 64 if entries is None else sum(map(_bytes_of, entries.values()))


def _rows(held: Any, numbers: list[int], gathered: Tensor) -> Any:
    """Return what `default_collate` makes of some samples, from what it has made of all."""
    if isinstance(held, Tensor):
        return held[gathered]
    if isinstance(held, list) and held and isinstance(held[0], str | bytes):
        return [held[at] for at in numbers]
    entries: Mapping[Any, Any] = entries_of(held) or {}
    return with_entries(held, [_rows(entry, numbers, gathered) for entry in entries.values()])
