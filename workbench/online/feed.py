"""What the trainer is fed with: a stream, read ahead if asked, sifted, and stopped when asked, by Ctrl-C too.

On Ctrl-C a step is finished, a wait for data is not. An exception in the middle of a step would leave gradients that
belong to no window and an optimizer that moved half of its parameters; a wait for the next batch may be long.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from workbench.core.signals import handling_signals
from workbench.online.read_ahead import ReadAhead
from workbench.online.stream import OpenStream, Read, StreamPosition, read_stream

__all__ = ["Feed", "Interrupts"]


class Interrupts:
    """Takes Ctrl-C in place of Python's own handler, inside ``taken``.

    Attributes:
        asked: Whether Ctrl-C was pressed. Pressed again, it raises ``KeyboardInterrupt`` wherever the program is.
    """

    def __init__(self) -> None:
        self.asked = False
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


class Feed:
    """The good batches of a stream, pass by pass.

    `passes` yields the number of each pass; between two of them the feed itself is iterated for its batches.

    Args:
        stream: Iterable of batches, or what opens one.
        start: Where to begin.
        queue_size: Batches to read ahead in a thread of their own; 0 reads them where they are needed.
        sift: Returns the good records of a batch, or None.
        interrupts: Told when the feed waits.
        stopped: Whether training was asked to stop.
        opened: Called when the stream is at its start, before the first batch is read.

    Attributes:
        dataset: The stream.
        position: Place behind the last batch handed out.
        is_over: Whether the stream ended by itself.
        wait_ms: How long the last batch was waited for, milliseconds.
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
        opened: Callable[[], None],
    ) -> None:
        self.dataset = stream
        self.position = start
        self.is_over = False
        self.wait_ms = 0.0
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
        """Yield the number of each pass that has a batch, once the first of them is there.

        Raises:
            ValueError: When data that is replayed holds no batch.
        """
        while not self._is_to_stop() and not self.is_over:
            self._first = self._next_good()
            if self._first is not None:
                yield self.position.epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the present pass."""
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
            batch = self._sift(read.batch)
            if batch is not None:
                self.position = read.after
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
