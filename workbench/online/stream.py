"""What is read from a training stream, and where in it one is.

A stream is any iterable of batches. One that starts over each time it is iterated (a list, a DataLoader) is replayed
for ever, as MindSpore's ``RecModel`` does; one that can be read only once (a generator, an open file) ends where it
ends. A callable opens a stream at an offset: ``open_stream(n)`` yields what comes after the first ``n`` batches, and is
read once. Nothing asks for a length, so the first step begins with the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from workbench.core.batch import tell_epoch
from workbench.mindspore.model_arguments import check_dataset

OpenStream = Callable[[int], Iterable[Any]]
"""Opens a stream after so many batches."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place between two batches."""

    epoch: int = 1  # pass over the data; a stream that is read once stays in its first
    offset: int = 0  # batches of this pass that lie before the place, rejected ones included


class Read(NamedTuple):
    """A batch, and the place behind it where reading goes on."""

    batch: Any
    after: StreamPosition


def check_stream(stream: Any) -> None:
    """Raise TypeError unless this ``train_dataset`` is an iterable of batches or opens one."""
    if isinstance(stream, (type, Iterable)) or not callable(stream):
        check_dataset("train_dataset", stream)


def read_stream(
    stream: Iterable[Any] | OpenStream, start: StreamPosition, opened: Callable[[], None]
) -> Iterator[Read | None]:
    """Yield the batches from a place on, and None at the end of each pass; call ``opened`` once when at that place.

    Without an opener, batches before the place are read and dropped: right for what yields the same batches each time.
    """
    position = start
    while True:
        batches, is_last = _opened(stream, position)
        if position is start:
            opened()
        offset = position.offset
        for batch in batches:
            offset += 1
            yield Read(batch, StreamPosition(position.epoch, offset))
        yield None
        if is_last:
            return
        if offset == 0:
            if position.epoch == 1:
                raise ValueError("`train_dataset` held no batch; give a list, a DataLoader or a stream that has some")
            return  # it could be iterated again, but its source has run dry
        position = StreamPosition(position.epoch + 1, 0)


def _opened(stream: Iterable[Any] | OpenStream, position: StreamPosition) -> tuple[Iterator[Any], bool]:
    """Return what is left of the pass, and whether it is the last."""
    if isinstance(stream, Iterable):
        tell_epoch(stream, position.epoch - 1)
        batches = iter(stream)
        for _ in islice(batches, position.offset):
            pass
        return batches, batches is stream
    opened = stream(position.offset)
    if not isinstance(opened, Iterable):
        raise ValueError(f"`train_dataset` must return an iterable of batches, got {type(opened).__name__}")
    return iter(opened), True
