"""Training batches that another process reads ahead, the same ones and in their order.

A *process* reads, not a thread: the process's random number generators are swapped for the stream's own while a source
produces (``workbench.tasks.batches``), and the training draws from them at the same time.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import Lock
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from workbench.core.loader import can_fork, handing_on, is_plain, loader_like
from workbench.core.open_files import held_file
from workbench.core.processor import usable_cores
from workbench.core.warning import warn

_AHEAD = 4  # batches: enough to even out a slow one, few enough to hold twice
_NO_FORK = "this platform does not fork processes"
_ASKED_SECONDS = 1.0  # how often a process that rests asks whether the one it reads for still lives


def why_not_ahead(loader: DataLoader[Any]) -> str:
    """Return why another process had better not read ahead what a loader gives, to stand after "because"; else empty.

    A file that is open here would be open there, too, and reading in one would move the place where the other reads.
    """
    if not can_fork():
        return _NO_FORK
    if usable_cores() < 2:
        return "there is one core"
    why_held = held_file(loader.dataset)
    return f"the data set may hold an open file ({why_held})" if why_held else ""


def loader_ahead(loader: Any) -> Any:
    """Return a loader whose batches a worker process reads ahead, in the same order.

    What is drawn while a sample is read comes from the worker's random numbers, not from this process's. A loader with
    worker processes is returned as it is, and so is anything else, with a warning.
    """
    if not is_plain(loader):
        warn(f"`runtime.data` = prefetch has no effect: a {type(loader).__name__} reads here; give a DataLoader")
        return loader
    if loader.num_workers:
        return loader
    return loader_like(loader, num_workers=1, prefetch_factor=_AHEAD, persistent_workers=True)


@dataclass
class _Stream(IterableDataset[Any]):
    batches: Iterator[Any]
    turn: Lock | None  # held while a batch is read
    parent: int  # the process that it is read for

    def __iter__(self) -> Iterator[Any]:
        nothing = object()
        while self._comes():
            try:
                batch = next(self.batches, nothing)
            finally:
                if self.turn is not None:
                    self.turn.release()
            if batch is nothing:
                return
            # By the queue's own way of pickling, whose errors would be printed there, and waited for here.
            yield bytes(ForkingPickler.dumps(batch))

    def _comes(self) -> bool:
        """Wait for the turn; return False where the parent has been killed meanwhile."""
        while self.turn is not None and not self.turn.acquire(timeout=_ASKED_SECONDS):
            if os.getppid() != self.parent:
                return False
        return True


def reading_turn() -> Lock | None:
    """Return what keeps `read_ahead` from reading while this process holds it; None where no process is forked."""
    return multiprocessing.get_context("fork").Lock() if can_fork() else None


def read_ahead(batches: Iterator[Any], turn: Lock | None = None) -> Iterator[Any]:
    """Yield the batches of a stream that another process reads, forked so that sources need not be picklable.

    The process rests while this one holds ``turn``. Where it cannot read (a source on an accelerator, or with processes
    of its own, which read ahead already) a warning says why, and the batches are read here.
    """
    process = _reading_process(batches, turn)
    if process is None:
        yield from batches
        return
    try:
        yield from process
    finally:  # to end, the process has to have its turn
        if turn is not None:
            with suppress(ValueError):  # it has it
                turn.release()


def _reading_process(batches: Iterator[Any], turn: Lock | None) -> Iterator[Any] | None:
    """Return the batches that a forked process reads; None, with a warning, where it cannot: it has ended then."""
    try:
        if not can_fork():
            raise RuntimeError(_NO_FORK)
        reader = handing_on(_Stream(batches, turn, os.getpid()), forked=True, prefetch_factor=_AHEAD)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)  # of fork
            stream = iter(reader)
        read = (ForkingPickler.loads(batch) for batch in stream)
        first = next(read)
    except Exception as error:  # the source's own trouble comes back from `batches`, from where it can be seen
        traceback.clear_frames(error.__traceback__)  # in which torch keeps the error, and with it the process
        said = str(error).strip().splitlines() or [type(error).__name__]
        warn(f"`runtime.data` = prefetch has no effect: {said[-1]}")
        return None
    return chain([first], read)
