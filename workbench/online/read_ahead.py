"""A reader thread and a bounded queue: data is read while a step computes, and never further ahead than agreed.

The bound is the back-pressure: with a full queue the reader waits for the trainer, so a fast source cannot fill the
memory. What goes wrong while reading is raised where the batch would have been taken.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")

_POLL_SECONDS = 0.1  # how late a waiting trainer notices that it was asked to stop
_JOIN_SECONDS = 2.0


class ReadAhead(Generic[T]):
    """Iterate in a thread of its own, at most ``size`` items ahead.

    Iterating it takes the items, the first of which starts the thread; `close` ends it. Items read ahead and never
    taken are lost to whoever else reads from the same iterator. ``stopped`` is asked while waiting for an item; when it
    says True, there are no more.
    """

    def __init__(self, items: Iterator[T], size: int, stopped: Callable[[], bool]) -> None:
        self._items = items
        self._size = size
        self._stopped = stopped
        self._waiting: deque[T] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_read = False
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def depth(self) -> int:
        """Number of items that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._read, name="workbench-reader", daemon=True)
            self._thread.start()
        with self._changed:
            while not self._waiting:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if self._is_read or self._closed or self._stopped():
                    raise StopIteration
                self._changed.wait(_POLL_SECONDS)
            item = self._waiting.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """End the thread and forget what was read ahead.

        Warns:
            RuntimeWarning: When the source is in the middle of a read that does not return; its thread ends with it, or
                with the program.
        """
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            warnings.warn(
                "the reader is still waiting for its source; its thread ends when that read returns",
                RuntimeWarning,
                stacklevel=2,
            )

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < self._size or self._closed)
                    if self._closed:
                        return
                    self._waiting.append(item)
                    self._changed.notify_all()
        except BaseException as error:  # raised again in the trainer, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._is_read = True
                self._changed.notify_all()
