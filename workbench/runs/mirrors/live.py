"""Mirror a run while it goes on, without ever holding it up.

Each mirror has a thread of its own, which takes whatever blocks have come in the meantime. A server that is slow gets
larger blocks, one that hangs holds nothing but its thread, and one that fails is given up with one warning; the run
goes on, and ``workbench runs mirror`` can send it again from its directory.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.core.records import Event, StepRecord
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorWarning, reason_of

__all__ = ["LiveMirrors"]

_MOST_WAITING = 20_000
"""Steps that wait for a slow mirror; of more, every second one is left out, overflows excepted."""

_WAIT_SECONDS = 30.0


class LiveMirrors:
    """Several mirrors of one run.

    It takes blocks as a ``RunRecorder`` does, so online training takes one as its ``recorder``, too.

    Args:
        mirrors: The mirrors.
        wait_seconds: How long the end of a run waits for each mirror, seconds.

    Raises:
        MirrorError: When a library is not installed.
    """

    def __init__(self, mirrors: Iterable[Mirror], *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self.mirrors = list(mirrors)
        for mirror in self.mirrors:
            mirror.check()
        self._wait_seconds = wait_seconds
        self._threads: list[_Thread] = []

    def begin(self, name: str, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Open the run, under a name, in every mirror.

        Raises:
            MirrorError: When one of them cannot be opened.
        """
        run = MirroredRun(name, config, environment)
        for mirror in self.mirrors:
            mirror.begin(run)
        self._threads = [_Thread(mirror) for mirror in self.mirrors]

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Hand a block of steps, in order, and their events to every mirror; returns at once.

        Warns:
            MirrorWarning: Once for a mirror that has failed since the last block.
        """
        block = list(records), list(events)
        for thread in self._threads:
            thread.take(*block)
        self._warn_of_failures()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send what is left and the results, as in ``summary.json``.

        Warns:
            MirrorWarning: For a mirror that failed or did not take the end in time.
        """
        for thread in self._threads:
            thread.end(summary)
        deadline = time.monotonic() + self._wait_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                thread.error = TimeoutError(f"it did not take the end of the run within {self._wait_seconds:g} s")
        self._warn_of_failures()
        self._threads = []

    def _warn_of_failures(self) -> None:
        for thread in self._threads:
            if thread.error is not None and not thread.warned:
                thread.warned = True
                warnings.warn(
                    f"the mirror to {thread.mirror} was given up ({reason_of(thread.error)}); the run goes on, "
                    "`workbench runs mirror RUN --to ...` sends it again once it is finished",
                    MirrorWarning,
                    stacklevel=3,
                )


class _Thread(threading.Thread):
    """What feeds one mirror; a daemon, since a server that hangs must not keep the program from ending."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(name=f"mirror to {mirror}", daemon=True)
        self.mirror = mirror
        self.error: Exception | None = None
        self.warned = False
        self._records: Sequence[StepRecord] = []
        self._events: list[Event] = []
        self._summary: Mapping[str, Any] | None = None
        self._changed = threading.Condition()
        self.start()

    def take(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Add a block to what waits."""
        with self._changed:
            if self.error is not None:
                return
            waiting = [*self._records, *records]
            if len(waiting) > _MOST_WAITING:
                waiting = [record for i, record in enumerate(waiting) if i % 2 == 0 or record.overflow]
            self._records = waiting
            self._events += events
            self._changed.notify()

    def end(self, summary: Mapping[str, Any]) -> None:
        """Let the thread end once everything is sent."""
        with self._changed:
            self._summary = dict(summary)
            self._changed.notify()

    def run(self) -> None:
        """Send until the end, or until something fails."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._records or self._events or self._summary is not None)
                    records, self._records = self._records, []
                    events, self._events = self._events, []
                    summary = self._summary
                if records or events:
                    self.mirror.write(records, events)
                if summary is not None:
                    self.mirror.finish(summary)
                    return
        except Exception as error:  # whatever a server, a disk or a library may raise
            with self._changed:
                self.error = error
                self._records, self._events = [], []
            self.mirror.abandon()
