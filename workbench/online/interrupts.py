"""Ctrl-C while training: a step is finished, a wait for data is not.

An exception in the middle of a step would leave gradients that belong to no window and an optimizer that moved half of
its parameters. A wait for the next batch may be long, so it ends at once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from workbench.core.signals import handling_signals

__all__ = ["Interrupts"]


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
