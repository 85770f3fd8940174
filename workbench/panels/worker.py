"""Long work in the background: one function at a time in a thread, and a pump that hands on its messages.

The pump hands messages on in batches, a few times a second, so that a display costs the same whether a step takes a
microsecond or a minute. After the last message comes the outcome, and with it both threads end.

A thread, not a process: a task is often an object that a notebook cell made, which no other process could load. Torch
leaves the interpreter free while it computes, and the thread draws its own random numbers.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from workbench.core.openmp import release_pool

_MESSAGES_KEPT: Final = 200_000  # a display that fell so far behind has lost its use; memory stays bounded
_LARGEST_SHARE: Final = 0.02  # of one core, for display: a slow one is refreshed less often
_TURN_SECONDS: Final = 0.001
_LONGEST_WAIT: Final = 10.0  # seconds, for a thread to end


@dataclass(slots=True)
class Outcome:
    """How the work ended."""

    result: Any = None  # what the function returned
    error: BaseException | None = None  # what it raised
    seconds: float = 0.0  # how long it took, pauses included
    display_error: Exception | None = None  # raised by a callback on the way; the work is not to blame
    display_seconds: float = 0.0  # processor time that callbacks took


class Gate:
    """Holds the work between two steps; fits ``workbench.training.run.Pause``."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.shut, self.open = self._open.clear, self._open.set
        self.open()

    def requested(self) -> bool:
        """Return whether the work is to be held."""
        return not self._open.is_set()

    def wait(self) -> None:
        """Wait until the gate is open."""
        self._open.wait()


class RunControl:
    """One piece of work: its messages out, and the requests to it."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.finished = threading.Event()
        self.reported = False
        self.threads: tuple[threading.Thread, ...] = ()
        self.pause = Gate()
        self._stop = threading.Event()
        self._messages: collections.deque[Any] = collections.deque(maxlen=_MESSAGES_KEPT)

    def stop_requested(self) -> bool:
        """Return whether the work is to end; called once per step."""
        return self._stop.is_set()

    def send(self, message: Any, *arguments: Any) -> None:
        """Send a message, or a call of a function with arguments, with one of the next batches; never blocks."""
        self._messages.append(functools.partial(message, *arguments) if arguments else message)

    def request_stop(self) -> None:
        """Ask the work to end, also when it is paused."""
        self._stop.set()
        self.pause.open()

    def taken_messages(self) -> list[Any]:
        """Return what was sent since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def work(self, function: Callable[[RunControl], Any]) -> None:
        """Call a function and note how it ended."""
        began = time.perf_counter()
        try:
            with short_turns(), _own_random_numbers():
                self.outcome.result = function(self)
        except BaseException as error:  # SystemExit of a user's module, too: it is for the panel to show
            self.outcome.error = error
        finally:
            self.outcome.seconds = time.perf_counter() - began
            self.finished.set()


def _own_random_numbers() -> contextlib.AbstractContextManager[None]:
    """Keep what a thread draws apart from what cells draw; before torch is imported there is nothing to keep apart."""
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from workbench.core.own_generators import own_generators

    return own_generators()


class Worker:
    """Run one function at a time.

    On the pump's thread ``on_messages`` is called with batches of messages, ``hz`` times a second at most (less often,
    but once a second at least, where that would take more than 2 % of a core), then ``on_end`` with the outcome; a new
    run may be started from then on. ``on_warning`` is called with the text of each warning of the work, on its thread;
    None leaves them to the interpreter.
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
        self._run = RunControl()  # the last one; the first has nothing to do
        self._run.reported = True
        self.closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._run.reported

    def start(self, function: Callable[[RunControl], Any]) -> None:
        """Begin work; a RuntimeError if some is already under way, or the worker was closed."""
        with self._lock:
            if self.closed:
                raise RuntimeError("this worker is closed; make a new panel")
            if not self._run.reported:
                raise RuntimeError("work is under way; stop it first")
            self._run = run = RunControl()
            run.threads = (
                _thread(functools.partial(run.work, function), self._name, self._on_warning),
                _thread(functools.partial(self._pump, run), f"{self._name} display"),
            )
            for thread in run.threads:
                thread.start()

    def stop(self) -> None:
        """Ask the work to end at its next step; nothing happens when there is none."""
        self._run.request_stop()

    def pause(self) -> None:
        """Ask the work to wait at its next step."""
        if not self._run.stop_requested():
            self._run.pause.shut()

    def resume(self) -> None:
        """Let paused work go on."""
        self._run.pause.open()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the work and its outcome, ``timeout`` seconds at most; return whether both threads have ended."""
        others = [thread for thread in self._run.threads if thread is not threading.current_thread()]
        until = None if timeout is None else time.monotonic() + timeout
        for thread in others:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def close(self, timeout: float = _LONGEST_WAIT) -> bool:
        """Stop the work and hand on nothing more; False if a step outlasts ``timeout`` (seconds)."""
        with self._lock:
            self.closed = True
        self.stop()
        return self.join(timeout)

    def _pump(self, run: RunControl) -> None:
        outcome, period, finished = run.outcome, self._period, False
        # The usual cost, not the mean: a display that now and then draws more sees to that itself.
        costs: collections.deque[float] = collections.deque(maxlen=5)
        while not finished:
            finished = run.finished.wait(period)
            messages = run.taken_messages()
            if messages and not self.closed:
                began = time.thread_time()
                try:
                    self._on_messages(messages)
                except Exception as error:  # a display that fails must not take the work with it
                    outcome.display_error = outcome.display_error or error
                costs.append(time.thread_time() - began)
                outcome.display_seconds += costs[-1]
                usual = statistics.median_low(costs)
                period = min(max(self._period, usual / _LARGEST_SHARE), max(1.0, self._period))
        run.reported = True
        if not self.closed:
            self._on_end(outcome)


class Reader:
    """Answers one question at a time in a thread; of those asked meanwhile only the newest is kept.

    ``on_error`` gets what computing or showing an answer has raised, ``on_warning`` the text of each warning.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None], on_warning: Callable[[str], None]) -> None:
        self._name, self._on_error, self._on_warning = name, on_error, on_warning
        self._changed = threading.Condition()
        self._wanted: tuple[Callable[[], Any], Callable[[Any], None]] | None = None
        self._thread: threading.Thread | None = None  # the last one that answered
        self._answering = self._closed = False

    def ask(self, answer: Callable[[], Any], show: Callable[[Any], None] = lambda _: None) -> None:
        """Have ``show`` called with what ``answer`` returns; at once when nothing is being answered."""
        with self._changed:
            self._wanted = answer, show
            if not (self._answering or self._closed):
                self._answering = True
                self._thread = _thread(self._answer_all, self._name, self._on_warning)
                self._thread.start()

    def is_superseded(self) -> bool:
        """Return whether the present answer is no longer needed: a newer question waits, or the reader was closed."""
        return self._closed or self._wanted is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything asked is answered and shown, for ``timeout`` seconds at most; return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._answering, timeout)

    def close(self) -> None:
        """Wait for the answer under way; nothing more is shown."""
        self._closed = True
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(_LONGEST_WAIT)

    def _answer_all(self) -> None:
        while (wanted := self._next()) is not None:
            answer, show = wanted
            try:
                with short_turns(), _own_random_numbers():
                    found = answer()
                if not self._closed:
                    show(found)
            except BaseException as error:  # SystemExit of a user's module, too
                if not self._closed:
                    self._on_error(error)

    def _next(self) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
        with self._changed:
            wanted, self._wanted = self._wanted, None
            self._answering = wanted is not None and not self._closed
            self._changed.notify_all()
            return wanted if self._answering else None


def _thread(
    function: Callable[[], None], name: str, on_warning: Callable[[str], None] | None = None
) -> threading.Thread:
    """Return a thread; what it prints belongs to the cell, or the click, that makes it."""
    context = contextvars.copy_context()
    if on_warning is not None:
        context.run(_listener.set, on_warning)
        _listen_to_warnings()
    release_pool()  # the kernel may have computed; its idle threads would slow those of the work
    return threading.Thread(target=context.run, args=(function,), name=f"workbench {name}", daemon=True)


_turns_lock = threading.Lock()
_turns_before: list[float] = []  # one entry for each block that is under way


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Let all threads of the process take turns of 1 ms in the block, not of 5 ms; several blocks may overlap.

    A click that needs the interpreter twenty times while training holds it then waits for 20 ms and not for 100, and
    training loses nothing that can be measured.
    """
    with _turns_lock:
        _turns_before.append(_turns_before[0] if _turns_before else sys.getswitchinterval())
        sys.setswitchinterval(min(_turns_before[0], _TURN_SECONDS))
    try:
        yield
    finally:
        with _turns_lock:
            before = _turns_before.pop()
            if not _turns_before:
                sys.setswitchinterval(before)


_listener: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar("listener", default=None)


def _listen_to_warnings() -> None:
    """Hand warnings from work to its listener, if it has one; all others go where they went.

    ``warnings.catch_warnings`` cannot do this: it changes the whole process and its nesting knows no threads.
    """
    shown_before = warnings.showwarning
    if getattr(shown_before, "listens", False):
        return

    def show(message: Any, *rest: Any, **options: Any) -> None:
        listener = _listener.get()
        if listener is None:
            shown_before(message, *rest, **options)
        else:
            listener(str(message))

    show.listens = True  # type: ignore[attr-defined]  # functions may carry attributes
    warnings.showwarning = show
