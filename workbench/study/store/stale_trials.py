"""Find trials whose process is gone, and let them wait again.

On this machine the process table tells at once. Of a process elsewhere the heartbeat tells: when it has not changed
for as long as the trial's mark allows, watched by our own clock. No two clocks are compared, so neither time zones nor
a clock that jumps make a living process look dead; the price is that a new process must watch for a while before it
takes over. While the database itself is away nobody can send a heartbeat: after such trouble everyone gets two
intervals to be heard again.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import optuna

from workbench.study.store.process_mark import is_gone, is_this_process, may_have_ended
from workbench.study.store.study_storage import RunningTrial, StudyStorage

__all__ = ["HEARTBEATS_PER_GRACE", "StaleTrials"]

HEARTBEATS_PER_GRACE = 6
"""How often a process sends a heartbeat within the time it may be silent."""

_LOOK_SECONDS = 1.0
_log = logging.getLogger("workbench")


@dataclass(slots=True)
class _Sign:
    """The last sign of life of a trial's process: claim and heartbeat, and when it was first seen."""

    claim: str
    beat: datetime.datetime | None
    seen_at: float


class StaleTrials:
    """Watch the running trials of a study.

    Args:
        database: Opened database.
        study: The study.
        clock: Seconds that only grow; for tests.
    """

    def __init__(
        self, database: StudyStorage, study: optuna.Study, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._study_id = database.get_study_id_from_name(study.study_name)
        self._clock = clock
        self._signs: dict[int, _Sign] = {}
        self._looked_at = -float("inf")

    def put_back(self, *, alone: bool = False) -> list[int]:
        """Let the trials of processes that are gone wait again.

        Args:
            alone: No other machine works on this database: a trial that was begun before this machine was started
                again, or carries no mark, has nobody.

        Returns:
            Their numbers. A trial that has ended several workers is failed instead, and is among them.
        """
        now = self._clock()
        if not alone and now - self._looked_at < min(_LOOK_SECONDS, self._database.grace_seconds / 12.0):
            return []
        self._looked_at = now
        running = self._database.running(self._study_id)
        self._signs = {one.trial_id: self._signs[one.trial_id] for one in running if one.trial_id in self._signs}
        put_back = []
        for trial in running:
            if self._database.is_held_here(trial):
                continue
            if (self._nobody_has(trial, alone) or self._is_silent(trial, now)) and self._database.put_back(
                trial, died=not _is_ours(trial)
            ):
                put_back.append(trial.number)
        if put_back:
            told = ", ".join(str(number) for number in put_back)
            _log.warning("the process of trial %s is gone; what it has not finished will be run again", told)
        return put_back

    def _nobody_has(self, trial: RunningTrial, alone: bool) -> bool:
        mark = trial.mark
        if mark is None:
            return alone
        # Our own without our claim: an earlier study of this process, which could not put it back on a full disk.
        if is_gone(mark) or is_this_process(mark):
            return True
        return alone and may_have_ended(mark)

    def _is_silent(self, trial: RunningTrial, now: float) -> bool:
        mark = trial.mark or {}
        claim = str(mark.get("claim", ""))
        grace = float(mark.get("grace_seconds", self._database.grace_seconds))
        sign = self._signs.get(trial.trial_id)
        if sign is None or (sign.claim, sign.beat) != (claim, trial.beat):
            self._signs[trial.trial_id] = _Sign(claim, trial.beat, now)
            return False
        heard_again = 2.0 * grace / HEARTBEATS_PER_GRACE
        return now - sign.seen_at > grace and self._database.patience.seconds_of_peace > heard_again


def _is_ours(trial: RunningTrial) -> bool:
    return trial.mark is not None and is_this_process(trial.mark)
