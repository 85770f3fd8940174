"""Long work beside the kernel: one function at a time in a thread, and a pump that tells what it says.

The function speaks as often as it likes (``RunControl.send`` never blocks); the pump hands the messages on in batches,
a few times a second, so that a display costs the same whether a step takes a microsecond or a minute. After the last
message comes the outcome, and with it both threads end.

A thread, not a process: a task is often an object that a notebook cell made, which no other process could load. Torch
leaves the interpreter free while it computes.
"""

from __future__ import annotations

import collections
import contextvars
import statistics
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from workbench.core.openmp import release_pool
from workbench.panels.short_turns import short_turns

__all__ = ["Gate", "Outcome", "RunControl", "Worker"]

_MESSAGES_KEPT: Final = 200_000  # a display that fell so far behind has lost its use; memory stays bounded
_LARGEST_SHARE: Final = 0.02  # of one core, for telling: a slow display is refreshed less often


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the work ended.

    Args:
        result: What the function returned; None when it raised.
        error: What it raised, with its traceback; None when it returned.
        seconds: How long it took, pauses included, seconds.
        display_error: What a callback of the display raised on the way, if anything; the work is not to blame.
        display_seconds: Processor time that telling took while the work went on, seconds.
    """

    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    display_error: Exception | None = None
    display_seconds: float = 0.0

    @property
    def traceback(self) -> str:
        """The traceback of the error as text; empty without one."""
        return "".join(traceback.format_exception(self.error)) if self.error is not None else ""


class Gate:
    """Holds the work between two steps; fits ``workbench.training.run.Pause``."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def requested(self) -> bool:
        """Return whether the work shall be held."""
        return not self._open.is_set()

    def wait(self) -> None:
        """Wait until the gate is open."""
        self._open.wait()

    def shut(self) -> None:
        """Hold the work at its next step."""
        self._open.clear()

    def open(self) -> None:
        """Let the work go on."""
        self._open.set()


class RunControl:
    """What the work gets to speak and to listen with."""

    def __init__(self) -> None:
        self.pause = Gate()
        self._stop = threading.Event()
        self._messages: collections.deque[Any] = collections.deque(maxlen=_MESSAGES_KEPT)

    def stop_requested(self) -> bool:
        """Return whether the work shall end; asked once per step."""
        return self._stop.is_set()

    def send(self, message: Any) -> None:
        """Hand out a message; never blocks.

        Args:
            message: Anything; the display gets it in order, in one of the next batches.
        """
        self._messages.append(message)

    def request_stop(self) -> None:
        """Ask the work to end, also when it is paused."""
        self._stop.set()
        self.pause.open()

    def taken_messages(self) -> list[Any]:
        """Return what was sent since the last call."""
        messages = []
        while self._messages:
            messages.append(self._messages.popleft())
        return messages


class Worker:
    """Run one function at a time.

    Args:
        on_messages: Called with batches of messages on the pump's thread.
        on_end: Called with the outcome, last, on the same thread; a new run may be started from then on.
        hz: Batches per second at most. A display so slow that this would take more than 2 % of a core is called less
            often, but once a second at least.
        name: Name of the threads.
        on_warning: Called with the text of each warning that the work raises, on the work's thread; None leaves
            warnings to the interpreter.
    """

    def __init__(
        self,
        on_messages: Callable[[list[Any]], None],
        on_end: Callable[[Outcome], None],
        *,
        hz: float = 5.0,
        name: str = "panel",
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self._on_messages, self._on_end = on_messages, on_end
        self._period = 1.0 / hz
        self._name, self._on_warning = name, on_warning
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether work is under way; false from the moment its outcome is told."""
        run = self._run
        return run is not None and not run.told

    def start(self, function: Callable[[RunControl], Any]) -> None:
        """Begin work.

        Args:
            function: The work; its return value, or what it raises, becomes the outcome.

        Raises:
            RuntimeError: When work is under way already, or the worker was closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this worker is closed; make a new panel")
            if self.alive:
                raise RuntimeError("work is under way; stop it first")
            self._run = run = _Run(function)
            # What the work prints belongs to the cell, or the click, that started it.
            context, telling = contextvars.copy_context(), contextvars.copy_context()
            if self._on_warning is not None:
                context.run(_listener.set, self._on_warning)
                _listen_to_warnings()
            run.threads = (
                threading.Thread(target=context.run, args=(run.work,), name=f"workbench {self._name}", daemon=True),
                threading.Thread(
                    target=telling.run, args=(self._pump, run), name=f"workbench {self._name} display", daemon=True
                ),
            )
            release_pool()  # the kernel may have computed; its idle threads would slow those of the work
            for thread in run.threads:
                thread.start()

    def stop(self) -> None:
        """Ask the work to end at its next step; nothing happens when there is none."""
        if self._run is not None:
            self._run.control.request_stop()

    def pause(self) -> None:
        """Ask the work to wait at its next step."""
        if self._run is not None and not self._run.control.stop_requested():
            self._run.control.pause.shut()

    def resume(self) -> None:
        """Let paused work go on."""
        if self._run is not None:
            self._run.control.pause.open()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the work and its outcome; return whether both threads have ended.

        Args:
            timeout: Longest wait, seconds; None waits for ever.
        """
        run = self._run
        if run is None:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        for thread in run.threads:
            if thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in run.threads if thread is not threading.current_thread())

    def close(self, timeout: float = 10.0) -> bool:
        """Stop the work and wait for it; nothing is told any more. May be called twice.

        Args:
            timeout: Longest wait, seconds: a step that takes longer ends in the background.

        Returns:
            Whether no thread is left.
        """
        with self._lock:
            self._closed = True
        self.stop()
        return self.join(timeout)

    def _pump(self, run: _Run) -> None:
        failure: Exception | None = None
        display_seconds = 0.0
        period = self._period
        # The usual cost, not the mean: a display that now and then draws more sees to that itself.
        costs: collections.deque[float] = collections.deque(maxlen=5)
        while True:
            finished = run.finished.wait(period)
            messages = run.control.taken_messages()
            if messages and not self._closed:
                began = time.thread_time()
                try:
                    self._on_messages(messages)
                except Exception as error:  # a display that fails must not take the work with it
                    failure = failure or error
                costs.append(time.thread_time() - began)
                display_seconds += costs[-1]
                usual = statistics.median_low(costs)
                period = min(max(self._period, usual / _LARGEST_SHARE), max(1.0, self._period))
            if finished:
                break
        run.told = True
        if not self._closed:
            self._on_end(Outcome(run.result, run.error, run.seconds, failure, display_seconds))


_listener: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar("listener", default=None)


def _listen_to_warnings() -> None:
    """Hand warnings of work that has a listener to it; those of everybody else go where they went.

    ``warnings.catch_warnings`` cannot do this: it changes the whole process and its nesting knows no threads.
    """
    shown_before = warnings.showwarning
    if getattr(shown_before, "listens", False):
        return

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        listener = _listener.get()
        if listener is None:
            shown_before(message, category, filename, lineno, file, line)
        else:
            listener(str(message))

    show.listens = True  # type: ignore[attr-defined]  # functions may carry attributes
    warnings.showwarning = show


class _Run:
    """One piece of work."""

    def __init__(self, function: Callable[[RunControl], Any]) -> None:
        self.function = function
        self.control = RunControl()
        self.finished = threading.Event()
        self.told = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.threads: tuple[threading.Thread, ...] = ()

    def work(self) -> None:
        began = time.perf_counter()
        try:
            with short_turns():
                self.result = self.function(self.control)
        except BaseException as error:  # SystemExit of a user's module, too: it is for the panel to tell
            self.error = error
        finally:
            self.seconds = time.perf_counter() - began
            self.finished.set()
