"""Ctrl-C while training: a step is finished, a wait for data is not.

An exception in the middle of a step would leave gradients that belong to no window and an optimizer that moved half of
its parameters. A wait for the next batch may be long, so it ends at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts"]


class Interrupts:
    """Takes Ctrl-C in place of Python's own handler, while entered.

    In another thread than the main one, or where a program has a handler of its own, nothing is taken.

    Attributes:
        asked: Whether Ctrl-C was pressed. Pressed again, it raises ``KeyboardInterrupt`` wherever the program is.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        self._before: Any = None

    def __enter__(self) -> Self:
        """Take over from Python's handler, if that one is in charge."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back.

        Args:
            kind: Class of the exception; None without one.
            error: The exception.
            trace: Its traceback.
        """
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

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
