"""Ctrl-C in the middle of work: end at a good moment, and say what is kept and what continues."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from workbench.cli.failures import Interrupted
from workbench.core.signals import handling_signals


@contextmanager
def stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second Ctrl-C raises ``KeyboardInterrupt``.

    The work asks it once per step and ends by itself. In a thread, which gets no signals, it stays False.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    with handling_signals({signal.SIGINT: press}):
        yield lambda: pressed


@contextmanager
def saying_on_ctrl_c(sentence: str) -> Iterator[None]:
    """Turn Ctrl-C into `Interrupted` with a sentence: what is saved, and which command continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(sentence) from None
