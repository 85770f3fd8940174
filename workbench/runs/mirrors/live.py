"""Mirror a run while it goes on, to mirrors named as on the command line, without ever holding it up.

Each mirror has a thread, which takes whatever blocks have come in the meantime. A slow server gets larger blocks, one
that hangs blocks only its own thread, and one that fails is dropped with one warning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from workbench.core.credentials import hide_passwords
from workbench.core.rank_environment import is_first_rank
from workbench.core.records import Event, StepRecord
from workbench.core.warning import warn
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorError, MirrorWarning, reason_of
from workbench.runs.mirrors.mlflow_mirror import MlflowMirror
from workbench.runs.mirrors.tensorboard_mirror import TensorBoardMirror

Blocks: TypeAlias = Iterable[tuple[Sequence[StepRecord], Sequence[Event]]]

_MOST_WAITING = 20_000
"""Most steps that wait for a slow mirror; beyond, every second one is left out, overflows excepted."""


class LiveMirrors:
    """Several mirrors of one run, fed with blocks like a ``RunRecorder`` (so online training takes it, too).

    The end of a run waits ``wait_seconds`` for each mirror. A library that is not installed is a MirrorError.
    """

    def __init__(self, mirrors: Iterable[Mirror], *, wait_seconds: float = 30.0) -> None:
        self.mirrors = list(mirrors)
        for mirror in self.mirrors:
            mirror.check()
        self._wait_seconds = wait_seconds
        self._threads: list[_Thread] = []

    def begin(
        self,
        name: str,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        earlier: Callable[[], Blocks] = tuple,
    ) -> None:
        """Open the run under a name in every mirror; a MirrorError if one of them cannot be opened.

        ``earlier`` returns what a resumed run has recorded before: a mirror starts from scratch.
        """
        run = MirroredRun(name, config, environment)
        for mirror in self.mirrors:
            mirror.begin(run)
        self._threads = [_Thread(mirror, earlier) for mirror in self.mirrors]

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Hand a block of steps, in order, and their events to every mirror; warn once of each that failed."""
        block = list(records), list(events)
        for thread in self._threads:
            thread.take(*block)
        self._drop_failed()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send what is left and the results, as in ``summary.json``; warn of a mirror that is too slow for that."""
        for thread in self._threads:
            thread.end(summary)
        deadline = time.monotonic() + self._wait_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                thread.error = TimeoutError(f"it did not take the end of the run within {self._wait_seconds:g} s")
        self._drop_failed()
        self._threads = []

    def _drop_failed(self) -> None:
        failed = [(thread, thread.error) for thread in self._threads if thread.error is not None]
        for thread, error in failed:
            self._threads.remove(thread)
            warn(
                f"the mirror to {thread.mirror} was stopped ({reason_of(error)}); the run continues, "
                "`workbench runs mirror RUN --to ...` sends it again once it is finished",
                MirrorWarning,
            )


def mirrors_named(given: Iterable[Mirror | str]) -> list[Mirror]:
    """Return mirrors, made here if only their names are given, such as ``"tensorboard=FOLDER"`` or ``"mlflow"``.

    Example:
        >>> [str(mirror) for mirror in mirrors_named(["tensorboard=logs", "mlflow=sqlite:///runs.db"])]
        ['TensorBoard in logs', 'MLflow at sqlite:///runs.db']
    """
    return [one if isinstance(one, Mirror) else _made(one) for one in given]


def live_mirrors(given: Iterable[Mirror | str]) -> LiveMirrors | None:
    """Return the mirrors of a run that is about to begin; None without any, and on every rank but the first."""
    mirrors = list(given)
    return LiveMirrors(mirrors_named(mirrors)) if mirrors and is_first_rank() else None


def _made(name: str) -> Mirror:
    kind, equals, place = name.partition("=")
    if equals and not place:
        raise MirrorError(f"a mirror must be named like `{kind}` or `{kind}=PLACE`, got {name!r}")
    if kind == "tensorboard":
        return TensorBoardMirror(place) if place else TensorBoardMirror()
    if kind == "mlflow":
        return MlflowMirror(place or None)
    shown = hide_passwords(name)
    raise MirrorError(f"a mirror must be `tensorboard`, `tensorboard=DIR`, `mlflow` or `mlflow=URI`, got {shown!r}")


class _Thread(threading.Thread):
    """Feeds one mirror; a daemon, since a server that hangs must not keep the program from ending."""

    def __init__(self, mirror: Mirror, earlier: Callable[[], Blocks]) -> None:
        super().__init__(name=f"mirror to {mirror}", daemon=True)
        self.mirror, self._earlier = mirror, earlier
        self.error: Exception | None = None
        self._records: Sequence[StepRecord] = []
        self._events: list[Event] = []
        self._summary: Mapping[str, Any] | None = None
        self._changed = threading.Condition()
        self.start()

    def take(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        with self._changed:
            waiting = [*self._records, *records]
            if len(waiting) > _MOST_WAITING:
                waiting = [record for i, record in enumerate(waiting) if i % 2 == 0 or record.overflow]
            self._records = waiting
            self._events += events
            self._changed.notify()

    def end(self, summary: Mapping[str, Any]) -> None:
        with self._changed:
            self._summary = dict(summary)
            self._changed.notify()

    def run(self) -> None:
        try:
            for block in self._earlier():
                self.mirror.write(*block)
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
            self.error = error
            self.mirror.abandon()
