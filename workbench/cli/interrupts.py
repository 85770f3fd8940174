"""Ctrl-C in the middle of work: end at a good moment, and say what is kept and what continues.

A scheduler's SIGTERM and a terminal that is closed mean the same; there is time to end well before SIGKILL follows.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from workbench.cli.failures import Interrupted
from workbench.core.signals import handling_signals

# What a scheduler and a closed terminal send; Windows has no SIGHUP.
ENDING = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def ending_like_ctrl_c() -> AbstractContextManager[None]:
    """Do on SIGTERM and SIGHUP what Ctrl-C does at that time; a SIGHUP that is ignored (``nohup``) stays so.

    A shell starts its background jobs with Ctrl-C ignored, and SIGTERM has to end them all the same.
    """

    def press(number: int, frame: FrameType | None) -> None:
        on_ctrl_c = signal.getsignal(signal.SIGINT)
        (on_ctrl_c if callable(on_ctrl_c) else signal.default_int_handler)(signal.SIGINT, frame)

    return handling_signals({one: press for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN})


@contextmanager
def stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C raises ``KeyboardInterrupt``.

    The work calls it once per step and ends by itself. In a thread, which gets no signals, it stays False.
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
