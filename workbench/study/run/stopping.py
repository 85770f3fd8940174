"""End a study before it is done: because somebody asks for it, or because its time is over.

Ctrl-C reaches the main thread only, and a time limit none. So a study asks before each thing it does and, inside a run,
at every step; what it was doing then is put back, and a run that got to its end meanwhile is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from workbench.study.errors import OutOfTimeError, StudyStoppedError
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, Trained, TrainJob
from workbench.study.run.runner import Experimenter, ExperimenterWrapper

_ON_REQUEST = "stopped on request; everything finished is saved, and the same study can be continued"


def end_if_asked(stop: Callable[[], bool] | None) -> None:
    """Raise `StudyStoppedError` if there is somebody to ask, and the answer is to end."""
    if stop is not None and stop():
        raise StudyStoppedError(_ON_REQUEST)


def end_if_over(deadline: float | None, needed_seconds: float = math.nan) -> None:
    """Raise `OutOfTimeError` if a deadline, by ``time.monotonic()``, is over or will be before this is done."""
    left = math.inf if deadline is None else deadline - time.monotonic()
    if left <= 0.0 or left < needed_seconds:
        raise OutOfTimeError("the time limit ended it; everything finished is saved", needed_seconds)


class StoppableExperimenter(ExperimenterWrapper):
    """An experimenter that ends the study when asked or when its time is over: between two jobs and within one step.

    ``stop`` is asked from the thread that trains. The deadline, by ``time.monotonic()``, may be changed between two
    jobs.
    """

    def __init__(
        self, inner: Experimenter, stop: Callable[[], bool] | None = None, deadline: float | None = None
    ) -> None:
        super().__init__(inner)
        self._inner = inner
        self._stop = stop
        self.deadline = deadline

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job, unless the study is to end (StudyStoppedError); what was cut short is no result.

        An OutOfTimeError, when its time is over, says of a training run how long it would have taken.
        """
        self._end_if_over()
        began, cut = time.monotonic(), False

        def stop() -> bool:
            nonlocal cut
            late = self.deadline is not None and time.monotonic() >= self.deadline
            cut = cut or late or (self._stop is not None and self._stop())
            return cut or (monitor.stop is not None and monitor.stop())

        try:
            outcome = self._inner.run(job, replace(monitor, stop=stop))
        except StudyStoppedError:  # raised between two steps, in words that do not know why
            self._end_if_over()
            raise
        if cut:
            share = outcome.steps / job.steps if isinstance(job, TrainJob) and isinstance(outcome, Trained) else 0.0
            self._end_if_over((time.monotonic() - began) / share if share > 0.0 else math.nan)
            raise StudyStoppedError(_ON_REQUEST)  # asked for a moment ago, and no longer
        return outcome

    def _end_if_over(self, needed_seconds: float = math.nan) -> None:
        end_if_asked(self._stop)
        end_if_over(self.deadline, needed_seconds)
