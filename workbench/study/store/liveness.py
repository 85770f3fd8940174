"""Which process runs a trial, and whether it is still there: marks, heartbeats, and trials whose process is gone.

A mark is a small JSON object stored with the trial. On one machine, the same boot and process-number namespace, a look
at the process table shows at once whether its process lives; the start time rules out a later one of the same
number. A process elsewhere is gone when its heartbeat has not changed for as long as its mark allows, watched by our
own clock. No two clocks are compared; the price is that a new process must watch for a while before it takes over.
After trouble with the database, when no heartbeat can be sent, everyone gets two intervals to send one again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import optuna

from workbench.core.process_identity import has_ended, identity, is_here, machine
from workbench.study.run.patience import STORAGE_ERRORS

if TYPE_CHECKING:
    from workbench.study.store.study_storage import StudyStorage

_HEARTBEATS_PER_GRACE = 6
"""How often a process sends a heartbeat within the time it may be silent."""

_LOOK_SECONDS = 1.0
_log = logging.getLogger("workbench")


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that is stored as running."""

    trial_id: int
    number: int
    mark: Mapping[str, Any] | None = field(hash=False)
    """Mark of the process that runs it, with its heartbeats so far; None when it has none."""


def new_mark(role: str, grace_seconds: float) -> dict[str, Any]:
    """Return the mark of a trial that this process begins now, as a ``"worker"`` or the ``"driver"``."""
    here = {"host": socket.gethostname(), "machine": machine(), **identity(os.getpid())}
    return here | {"role": role, "grace_seconds": grace_seconds, "claim": secrets.token_hex(8)}


def _is_this_process(mark: Mapping[str, Any] | None) -> bool:
    return mark is not None and is_here(mark) and mark.get("pid") == os.getpid() and not has_ended(mark)


@contextlib.contextmanager
def heartbeat(storage: StudyStorage, trial_id: int) -> Iterator[threading.Event]:
    """Send heartbeats for a trial, the first after an interval; the event is set once another process has the trial."""
    lost, stop = threading.Event(), threading.Event()

    def beat() -> None:
        while not lost.is_set() and not stop.wait(storage.grace_seconds / _HEARTBEATS_PER_GRACE):
            try:
                if not storage.beat(trial_id):
                    lost.set()
            except STORAGE_ERRORS:  # a database that is away for a moment ends no training
                storage.patience.note_failure()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()


class StaleTrials:
    """Watch the running trials of a study, and let those of processes that are gone wait again."""

    def __init__(
        self, database: StudyStorage, study: optuna.Study, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._study_id = database.get_study_id_from_name(study.study_name)
        self._clock = clock
        self._heard: dict[RunningTrial, float] = {}  # trial as it stands -> when it was first seen so
        self._looked_at = -float("inf")

    def put_back(self, *, alone: bool = False) -> list[int]:
        """Look for such trials, at most once a second; return their numbers, with those failed for killing workers.

        ``alone``: no other machine works on this database, so a trial that was begun before this machine was started
        again, or carries no mark, has no process.
        """
        now = self._clock()
        if not alone and now - self._looked_at < min(_LOOK_SECONDS, self._database.grace_seconds / 12.0):
            return []
        self._looked_at = now
        running = self._database.running(self._study_id)
        self._heard = {one: self._heard.get(one, now) for one in running}
        gone = [one for one in running if self._has_no_process(one, alone) or self._is_silent(one, now)]
        put_back = [one.number for one in gone if self._database.put_back(one, died=not _is_this_process(one.mark))]
        if put_back:
            numbers = ", ".join(map(str, put_back))
            _log.warning("the process of trial %s is gone; what it has not finished will be run again", numbers)
        return put_back

    def _has_no_process(self, trial: RunningTrial, alone: bool) -> bool:
        mark = trial.mark
        if mark is None:
            return alone
        # This process runs no such trial: an earlier study here could not put it back, say because the disk was full.
        if has_ended(mark) or _is_this_process(mark):
            return True
        return alone and mark.get("host") == socket.gethostname() and not is_here(mark)

    def _is_silent(self, trial: RunningTrial, now: float) -> bool:
        grace = float((trial.mark or {}).get("grace_seconds", self._database.grace_seconds))
        heard_again = 2.0 * grace / _HEARTBEATS_PER_GRACE
        return now - self._heard[trial] > grace and self._database.patience.seconds_of_peace > heard_again
