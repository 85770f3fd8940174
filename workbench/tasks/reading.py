"""The same training batches, bit for bit and in order, from samples that stay on the device; which way is quicker.

A source of which that is not possible is left alone, with a warning that says why.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from workbench.core.batch import move_batch
from workbench.core.loader import is_plain
from workbench.core.own_generators import kept_generators
from workbench.core.processor import usable_cores
from workbench.core.warning import warn
from workbench.tasks.batches import ShuffledBatches, opened_once
from workbench.tasks.kept_samples import NotKeptError, keeping, look_at_reading, over_numbers
from workbench.tasks.read_ahead import why_not_ahead

_WORTH_READING = 0.05  # share of a step that reading takes
_WORTH_A_CORE = 0.2  # the same where another process reads, on a core that may train something else
_ALWAYS_BUSY = 0.8  # share of the time that worker processes read, beyond which steps wait for them
_TIMED_BATCHES = 4  # of a stream, whose samples cannot be read one by one
_FEWEST_EPOCHS = 2.0


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
    if not is_plain(source):
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


@dataclass(frozen=True, slots=True)
class Reading:
    """How batches may be read faster than their source does."""

    data: Literal["as_given", "resident", "prefetch"] = "as_given"  # a value of `runtime.data`
    not_kept: str = ""  # why samples are not kept in memory where that might help, a sentence; else empty
    cores: int | None = None  # that worker processes keep busy today; None where there are none


def quicker_reading(
    source: Any, seed: int, device: torch.device, *, batch_size: int, step_seconds: float, epochs: float
) -> Reading:
    """Return how batches may be read faster than the source does.

    `resident` makes batches otherwise than the source where that picks samples one by one, or holds them on the host.
    Samples that have to be read must take a good part of a step, and be read again in a training of so many ``epochs``.
    Those that cannot be kept may be read ahead, by a loader that does not do so yet.
    """
    opened = _opened(source, seed)
    if not is_plain(opened):
        is_held = isinstance(opened, list | tuple) or (isinstance(opened, ShuffledBatches) and opened.held is not None)
        return Reading("resident" if device.type != "cpu" and is_held else "as_given")
    workers: int = opened.num_workers
    are_rows = _tensors_of(opened) is not None
    if are_rows and not workers:
        return Reading("resident")
    try:
        per_sample, why_not = look_at_reading(opened)
        share = per_sample * batch_size / step_seconds
        cores = min(workers, round(share)) if workers else None
        if epochs < _FEWEST_EPOCHS:
            why_not = "most are read once in a training"
    except NotKeptError as why:
        share, cores, why_not = 0.0 if workers else _batch_seconds(opened) / step_seconds, workers or None, str(why)
    if are_rows:
        return Reading("resident", cores=cores)
    of_one = share / max(workers, 1)
    if (of_one if device.type != "cpu" else share) < _WORTH_READING:  # elsewhere workers take no core from the training
        return Reading(cores=cores)
    if not why_not:
        return Reading("resident", cores=cores)
    sentence = f"Samples kept in memory are left out, because {why_not}."
    if workers:  # which read ahead
        left = usable_cores() - workers - (torch.get_num_threads() if device.type == "cpu" else 1)
        advice = f"{sentence} {_about_workers(workers, left)}" if of_one > _ALWAYS_BUSY and left > 0 else ""
        return Reading(not_kept=advice, cores=cores)
    sentence += f" Reading them takes about {min(100 * share, 100):.0f} % of a step"
    if device.type == "cpu" and share < _WORTH_A_CORE:
        return Reading(not_kept=f"{sentence}.")
    if not (why_not := why_not_ahead(opened)):
        return Reading("prefetch", f"{sentence}, so a process that reads ahead is tried.")
    may_hide = f"which `num_workers` of the loader may hide; that is not tried, because {why_not}"
    return Reading(not_kept=f"{sentence}, {may_hide}.")


def _about_workers(workers: int, left: int) -> str:
    are = "worker process of the loader is" if workers == 1 else f"{workers} worker processes of the loader are"
    cores = "a core is" if left == 1 else f"{left} cores are"
    return f"The {are} almost always busy, and {cores} left for more: a larger `num_workers` may make steps faster."


def worker_processes(source: Any) -> int:
    """Return how many processes read what a source gives; 0 where that is not known."""
    opened = _opened(source, 0)
    return opened.num_workers if is_plain(opened) else 0


def _opened(source: Any, seed: int) -> Any:
    once = opened_once(source)
    return source if once is None else once(seed)


def _batch_seconds(loader: DataLoader[Any]) -> float:
    """Return what a batch of a loader takes in this process, seconds, not counting the first."""
    with kept_generators(torch.device("cpu")):
        stream = iter(loader)
        next(stream, None)
        began = time.perf_counter()
        n_read = sum(1 for _ in itertools.islice(stream, _TIMED_BATCHES))
    return (time.perf_counter() - began) / max(n_read, 1)


def _tensors_of(source: Any) -> tuple[Tensor, ...] | None:
    """Return what a loader's batches are rows of; None where they may be anything."""
    if not is_plain(source) or source.batch_size is None or source.collate_fn is not default_collate:
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
