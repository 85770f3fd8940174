"""Streams of batches that start again at any position and never disturb the training's random numbers.

A *source* is what a task calls ``train`` or ``evaluate`` (see `Task`). The same source, seed and start give the same
stream: while the source produces a batch, the global generators of torch, numpy and ``random`` are swapped for the
stream's own, seeded by (seed, epoch), and those of a ``DataLoader`` are seeded likewise. Ranks that train together
share one stream, which each produces whole unless a ``DistributedSampler`` divides it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from workbench.core.batch import fields_of, held_by_object, move_batch, tell_epoch
from workbench.core.loader import is_plain, loader_like
from workbench.core.own_generators import RandomStream
from workbench.tasks.errors import TaskError

_log = logging.getLogger("workbench")
_MANY = 2000  # batches of an evaluation; a source that yields more, and has no length, may be endless


@runtime_checkable
class SeekableBatches(Protocol):
    """A source that can start anywhere by itself, without producing what comes before."""

    def stream(self, start: int) -> Iterator[Any]:
        """Yield batches without end, beginning with batch number ``start``."""


class ShuffledBatches:
    """Shuffled batches of samples held in memory: a new permutation each epoch, any position at once.

    The last, incomplete batch of an epoch is left out, so that every step costs the same and batch statistics stay
    comparable.

    Args:
        n_samples: Number of samples, >= 1.
        batch_size: Samples per batch, >= 1; reduced to ``n_samples`` where that is smaller.
        seed: Seed of the permutations, >= 0.
        gather: Makes a batch of int64 sample indices, shape ``[batch_size]``; with ``held`` called as
            ``gather(held, indices)``, both on one device.
        held: Tensors, or tuples, lists and mappings of them: all that ``gather`` reads. With it the samples can stay on
            a device (``runtime.data``).
    """

    def __init__(
        self, n_samples: int, batch_size: int, seed: int, gather: Callable[..., Any], held: Any = None
    ) -> None:
        if n_samples < 1 or batch_size < 1:
            raise TaskError(f"`n_samples` and `batch_size` must be at least 1, got {n_samples} and {batch_size}")
        self.n_samples = n_samples
        self.batch_size = min(batch_size, n_samples)
        self.seed = seed
        self.held = held
        self._gather = gather
        self._device = torch.device("cpu")

    def on(self, device: torch.device) -> ShuffledBatches:
        """Return the same batches, gathered on a device from what is held there; not without ``held``."""
        if self.held is None:
            raise TaskError("ShuffledBatches can be moved to a device only when they know what they hold")
        moved = ShuffledBatches(self.n_samples, self.batch_size, self.seed, self._gather, move_batch(self.held, device))
        moved._device = device
        return moved

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.n_samples // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        """Yield the first epoch."""
        return islice(self.stream(0), len(self))

    def stream(self, start: int, stride: int = 1) -> Iterator[Any]:
        """Yield every ``stride``-th batch without end, beginning with batch number ``start``."""
        epoch, order = -1, None
        for number in count(start, stride):
            its_epoch, index = divmod(number, len(self))
            if order is None or its_epoch != epoch:
                epoch = its_epoch
                generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
                order = torch.randperm(self.n_samples, generator=generator, device="cpu")
            indices = order[index * self.batch_size : (index + 1) * self.batch_size]
            yield self._gather(indices) if self.held is None else self._gather(self.held, indices.to(self._device))


def check_source(source: Any, role: str) -> None:
    """Raise TaskError unless what a task gave as ``role`` is a re-iterable or a callable of a seed."""
    if isinstance(source, Iterator):
        raise TaskError(
            f"`{role}` must be iterable again and again, got a one-shot {type(source).__name__}; "
            "give a list, a DataLoader, or a function of a seed that returns it"
        )
    if isinstance(source, Tensor | str | bytes | Mapping):
        raise TaskError(f"`{role}` must yield batches, got a single {type(source).__name__}; put batches into a list")
    if isinstance(source, type):
        raise TaskError(f"`{role}` must be an object that yields batches, got the class {source.__name__}")
    if not isinstance(source, Iterable | SeekableBatches) and not callable(source):
        raise TaskError(
            f"`{role}` must be a re-iterable of batches or a function of a seed, got {type(source).__name__}; "
            "a data set goes into a DataLoader"
        )
    if takes_seed(source) and _n_positional(source) < 1:
        raise TaskError(f"`{role}` must be a function of a seed, got one without parameters; write `def {role}(seed)`")


def endless_batches(source: Any, seed: int, start: int = 0, rank: int = 0, n_ranks: int = 1) -> Iterator[Any]:
    """Yield every ``n_ranks``-th batch of a source, epoch after epoch, without end, after so many of this rank's.

    Sources with ``stream(start)`` go there at once; a list or a ``DataLoader`` over a map-style dataset skips whole
    epochs; others are read from the beginning. A callable of a seed is called once if it returns a re-iterable, and
    once per epoch if it returns an iterator or takes the epoch.
    """
    if takes_seed(source):
        with RandomStream(mixed_seed(seed, 0)).active():
            opened = _open_source(source, seed, 0, "train")
        if not isinstance(opened, Iterator) and not opens_each_epoch(source):
            source = opened  # good for every epoch; otherwise it is opened again for each
    else:
        opened = source
    source = _with_own_workers(source)
    shares = _replicas(opened) if n_ranks > 1 else 1
    if shares not in (1, n_ranks):
        raise TaskError(
            f"the sampler of `train` shares the data between {shares} ranks, but {n_ranks} train together; leave out "
            "its `num_replicas`, so that it asks torch.distributed"
        )
    if shares > 1:
        rank, n_ranks = 0, 1
    first = start * n_ranks + rank
    if isinstance(source, ShuffledBatches):
        yield from source.stream(first, n_ranks)
    elif isinstance(source, SeekableBatches):
        yield from islice(source.stream(first), 0, None, n_ranks)
    else:
        yield from _read_on(source, seed, first, n_ranks)


def _read_on(source: Any, seed: int, first: int, every: int) -> Iterator[Any]:
    """Yield a source's batch at position ``first``, counted over all epochs, and every so many-th after it."""
    has_length = isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset)
    has_length = has_length and not source.persistent_workers  # their random numbers go on from epoch to epoch
    n_batches = len(source) if has_length or isinstance(source, list | tuple) else 0  # where it can be trusted
    epoch, to_skip = divmod(first, n_batches) if n_batches else (0, first)
    while True:
        n_seen = 0
        for batch in _one_epoch(source, seed, epoch, "train"):
            n_seen += 1
            if to_skip > 0:
                to_skip -= 1
            else:
                to_skip = every - 1
                yield batch
        if n_seen == 0:
            raise TaskError(f"`train` must yield at least one batch per epoch, got none in epoch {epoch}")
        epoch += 1


def _with_own_workers(loader: Any) -> Any:
    """Return a loader whose workers stay with workers of its own, which the former ones' random numbers do not reach.

    Everything else is returned as it is, one of a class of the user's, too.
    """
    if not is_plain(loader) or not loader.persistent_workers:
        return loader
    return loader_like(loader)


@dataclass(frozen=True)
class EvaluationBatches:
    """One pass over a source, with random numbers of its own: the same each time it is read."""

    source: Any
    seed: int

    def __iter__(self) -> Iterator[Any]:
        n_seen = 0
        for batch in _one_epoch(self.source, self.seed, 0, "evaluate"):
            n_seen += 1
            yield batch
        if n_seen == 0:
            raise TaskError("`evaluate` must yield at least one batch, got none")


def mixed_seed(*words: int) -> int:
    """Mix non-negative integers into one 63-bit seed, so that neighbours in (seed, epoch) share no stream."""
    return int(np.random.SeedSequence([abs(int(word)) for word in words]).generate_state(1, np.uint64)[0]) >> 1


def digest_of_batches(batches: Iterable[Any], limit: int | None = None) -> str:
    """Return the SHA-256 of the first ``limit`` batches (None: of all): dtypes, shapes and bytes, 64 hex digits."""
    digest = hashlib.sha256()
    for batch in islice(batches, limit):
        _feed(digest, batch)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, np.ndarray | np.generic) and not part.dtype.hasobject:
        digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
    elif isinstance(part, Tensor) and part.is_nested:
        _feed(digest, part.detach().unbind())
    elif isinstance(part, Tensor) and part.layout != torch.strided:
        entries = part.detach().to_sparse().coalesce()
        _feed(digest, [str(part.layout), *part.shape, entries.indices(), entries.values()])
    elif isinstance(part, Tensor):
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(part, Mapping):
        for key in part:
            digest.update(repr(key).encode())
            _feed(digest, part[key])
    elif isinstance(part, list | tuple):
        for item in part:
            _feed(digest, item)
    elif (held := fields_of(part) or held_by_object(part)) is not None:
        _feed(digest, held)
    else:  # repr of an unknown object may hold its address, which is no property of the data
        known = isinstance(part, str | bytes | int | float | bool | None)
        digest.update((repr(part) if known else type(part).__name__).encode())


def takes_seed(source: Any) -> bool:
    """Return whether a source is a function of the seed, perhaps of the epoch, too."""
    return callable(source) and not isinstance(source, Iterable) and not isinstance(source, SeekableBatches)


def opens_each_epoch(source: Any) -> bool:
    """Return whether a source is a function of the seed and the epoch."""
    return takes_seed(source) and _n_positional(source) > 1


def opened_once(source: Any) -> Callable[[Any], Any] | None:
    """Return a source that is a function of the seed alone; None where it is none, or is opened again each epoch."""
    return source if takes_seed(source) and not opens_each_epoch(source) else None


def with_loader(source: Any, change: Callable[[DataLoader[Any]], Any]) -> Any:
    """Return a source whose DataLoader, or each that it makes, is changed."""

    def changed(opened: Any) -> Any:
        return change(opened) if isinstance(opened, DataLoader) else opened

    if not takes_seed(source):
        return changed(source)
    if opens_each_epoch(source):
        return lambda seed, epoch: changed(source(seed, epoch))
    return lambda seed: changed(source(seed))


def _n_positional(function: Callable[..., Any]) -> int:
    """Count the positional parameters without a default (with one: those of a function that has no other)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a builtin without signature: take it at its word
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if not required:
        return 1 if positional or any(p.kind is p.VAR_POSITIONAL for p in parameters) else 0
    return len(required)


def _open_source(source: Callable[..., Any], seed: int, epoch: int, role: str) -> Any:
    opened = source(seed, epoch) if opens_each_epoch(source) else source(seed)
    if not isinstance(opened, Iterable | SeekableBatches) or isinstance(opened, Tensor | str | bytes | Mapping):
        raise TaskError(f"`{role}({seed})` must return an iterable of batches, got {type(opened).__name__}")
    return opened


def _replicas(source: Any) -> int:
    """Return among how many ranks a loader's sampler divides the samples; 1 when it knows of no ranks."""
    batch_sampler = getattr(source, "batch_sampler", None)
    samplers = (getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    return next((int(n) for n in (getattr(one, "num_replicas", None) for one in samplers) if n is not None), 1)


def _one_epoch(source: Any, seed: int, epoch: int, role: str) -> Iterator[Any]:
    """Yield one pass, with the stream's own random numbers while the source is at work."""
    if isinstance(source, list | tuple):
        yield from source  # no code of the user's runs: nothing to isolate
        return
    stream = RandomStream(mixed_seed(seed, epoch))
    with stream.active():
        opened = _open_source(source, seed, epoch, role) if takes_seed(source) else source
        if role == "evaluate" and _replicas(opened) > 1:
            raise TaskError(
                "`evaluate` must yield all samples, since rank 0 evaluates alone, got a loader whose sampler gives it "
                f"one part of {_replicas(opened)}; leave the sampler out"
            )
        if role == "evaluate":  # each pass draws the same numbers, while those of training go on from epoch to epoch
            opened = _with_own_workers(opened)
        for holder in (opened, getattr(opened, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(mixed_seed(seed, epoch, 1))
        tell_epoch(opened, epoch)
        iterator = iter(opened)
    nothing = object()
    for n_seen in count(1):
        with stream.active():
            batch = next(iterator, nothing)
        if batch is nothing:
            return
        if role == "evaluate" and n_seen == _MANY and not _has_as_many(opened):
            _tell_of_many()
        yield batch


def _has_as_many(source: Any) -> bool:
    with contextlib.suppress(Exception):  # a stream whose length is not known, in the words of its class
        return len(source) >= _MANY
    return False


@functools.cache
def _tell_of_many() -> None:
    """Say, once in a process, how an evaluation may come to have no end; no error, since it may have one."""
    _log.warning(
        "`evaluate` has yielded %s batches and does not say how many there are; an evaluation takes all of them, so "
        "a stream without end must be cut (itertools.islice)",
        f"{_MANY:,}",
    )
