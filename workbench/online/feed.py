"""What the trainer is fed with: a stream, read ahead if asked, sifted, and stopped when asked, by Ctrl-C too.

On Ctrl-C a step is finished, a wait for data is not. An exception in the middle of a step would leave gradients that
belong to no window and an optimizer that moved half of its parameters; a wait for the next batch may be long.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from workbench.core.signals import handling_signals
from workbench.core.warning import warn
from workbench.online.stream import OpenStream, Read, StreamPosition, read_stream

_POLL_SECONDS = 0.1  # how late a waiting trainer notices that it was asked to stop
_JOIN_SECONDS = 2.0


class Interrupts:
    """Takes Ctrl-C in place of Python's own handler, inside ``taken``; pressed again, it raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False  # whether Ctrl-C was pressed
        self._waiting = False

    def taken(self) -> contextlib.AbstractContextManager[None]:
        """Take Ctrl-C inside a block; not where a program has a handler of its own, nor outside the main thread."""
        is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return handling_signals({signal.SIGINT: self._press} if is_pythons else {})

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for data, which Ctrl-C ends with ``KeyboardInterrupt``."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._waiting:
            raise KeyboardInterrupt


class ReadAhead:
    """Read in a thread of its own, at most ``size`` items ahead, until ``stopped`` says so.

    With a full queue the reader waits for the trainer, so a fast source cannot fill the memory. Taking the first item
    starts the thread; `close` ends it, and what was read ahead is lost. What goes wrong while reading is raised where
    the batch would have been taken.
    """

    def __init__(self, items: Iterator[Read | None], size: int, stopped: Callable[[], bool]) -> None:
        self._items = items
        self._stopped = stopped
        self._waiting: queue.Queue[Read | BaseException | None] = queue.Queue(size)
        self._is_over = threading.Event()  # closed, or its end was taken
        self._thread: threading.Thread | None = None

    @property
    def depth(self) -> int:
        """Number of items that wait."""
        return self._waiting.qsize()

    def __iter__(self) -> Iterator[Read | None]:
        return self

    def __next__(self) -> Read | None:
        if self._thread is None and not self._is_over.is_set():
            self._thread = threading.Thread(target=self._read, name="workbench-reader", daemon=True)
            self._thread.start()
        while not self._is_over.is_set():
            try:
                item = self._waiting.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._stopped():
                    break
                continue
            if not isinstance(item, BaseException):
                return item
            self._is_over.set()
            raise item
        raise StopIteration

    def close(self) -> None:
        """End the thread and forget what was read ahead; warn when its source is in the middle of a read."""
        self._is_over.set()
        while not self._waiting.empty():  # wakes a reader that waits for room, so that it ends
            self._waiting.get()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            warn("the reader is still waiting for its source; its thread ends when that read returns", RuntimeWarning)

    def _read(self) -> None:
        ended: BaseException = StopIteration()
        try:
            for item in self._items:
                self._waiting.put(item)
                if self._is_over.is_set():
                    return
        except BaseException as error:  # raised again in the trainer, whatever it is
            ended = error
        self._waiting.put(ended)


class Feed:
    """The good batches of a stream, pass by pass.

    `passes` yields the number of each pass; between two of them the feed itself is iterated for its batches.
    """

    def __init__(
        self,
        stream: Iterable[Any] | OpenStream,
        start: StreamPosition,
        *,
        queue_size: int,
        sift: Callable[[Any], Any | None],
        interrupts: Interrupts,
        stopped: Callable[[], bool],
        opened: Callable[[], None],  # called when the stream is at its start, before the first batch is read
    ) -> None:
        self.dataset = stream
        self.position = start  # behind the last batch that was sifted
        self.is_over = False  # whether the stream ended by itself
        self.wait_ms = 0.0  # how long the last batch was waited for
        self._sift = sift
        self._interrupts = interrupts
        self._stopped = stopped
        self._first: Any = None
        reads = read_stream(stream, start, opened)
        self._ahead = ReadAhead(reads, queue_size, stopped) if queue_size else None
        self._reads: Iterator[Read | None] = reads if self._ahead is None else self._ahead

    @property
    def depth(self) -> int:
        """Batches that wait in the queue."""
        return 0 if self._ahead is None else self._ahead.depth

    def passes(self) -> Iterator[int]:
        """Yield the number of each pass that has a batch, once the first of them is there."""
        while not self._is_to_stop() and not self.is_over:
            self._first = self._next_good()
            if self._first is not None:
                yield self.position.epoch

    def __iter__(self) -> Iterator[Any]:
        batch, self._first = self._first, None
        while batch is not None:
            yield batch
            batch = self._next_good()

    def close(self) -> None:
        """End the reader thread, if there is one."""
        if self._ahead is not None:
            self._ahead.close()

    def _next_good(self) -> Any | None:
        """Return the next batch with a good record, or None at the end of a pass."""
        began = time.perf_counter()
        while not self._is_to_stop():
            read = self._next_read()
            if read is None:
                return None
            self.position = read.after  # behind what is rejected, too: a resumed run must not count it again
            batch = self._sift(read.batch)
            if batch is not None:
                self.wait_ms = (time.perf_counter() - began) * 1e3
                return batch
        return None

    def _next_read(self) -> Read | None:
        try:
            with self._interrupts.waiting():
                return next(self._reads)
        except StopIteration:
            self.is_over = not self._is_to_stop()
        except KeyboardInterrupt:  # no step is under way, so this is an end in good order
            self._interrupts.asked = True
        return None

    def _is_to_stop(self) -> bool:
        return self._interrupts.asked or self._stopped()
