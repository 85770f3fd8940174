"""End a study before it is done: because somebody asks for it, or because its time is over.

Ctrl-C reaches the main thread only, and a time limit nobody. So a study asks before each thing it does and, inside a
run, at every step; what it was doing then is put back as Ctrl-C would, and the same command continues from there. A
step or an evaluation that has begun is finished, and a run that got to its end meanwhile is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from workbench.study.errors import OutOfTimeError, StudyStoppedError
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, Trained, TrainJob
from workbench.study.run.runner import Experimenter, ExperimenterWrapper

__all__ = ["StoppableExperimenter", "end_if_asked", "end_if_over"]

_ON_REQUEST = "stopped on request; everything finished is saved, and the same study can go on"


def end_if_asked(stop: Callable[[], bool] | None) -> None:
    """End the study if somebody asks for it.

    Args:
        stop: Returns whether to end; None never does.

    Raises:
        StudyStoppedError: When it is to end.
    """
    if stop is not None and stop():
        raise StudyStoppedError(_ON_REQUEST)


def end_if_over(deadline: float | None, needed_seconds: float = math.nan) -> None:
    """End what the study is doing if its time is over, or will be before that is done.

    Args:
        deadline: ``time.monotonic()`` at which it is over; None for never.
        needed_seconds: How long that takes; NaN when it is not known.

    Raises:
        OutOfTimeError: When there is not enough time.
    """
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0.0 or left < needed_seconds:
        raise OutOfTimeError("the time limit ended it; everything finished is saved", needed_seconds)


class StoppableExperimenter(ExperimenterWrapper):
    """An experimenter that ends the study when asked or when its time is over: between two jobs and within one step.

    Args:
        inner: Who trains.
        stop: Asked at every step, from the thread that trains; None for nobody.
        deadline: ``time.monotonic()`` at which the time is over; None for never.

    Attributes:
        deadline: May be set anew between two jobs, since the parts of a study end at different times.
    """

    def __init__(
        self, inner: Experimenter, stop: Callable[[], bool] | None = None, deadline: float | None = None
    ) -> None:
        super().__init__(inner)
        self._stop = stop
        self.deadline = deadline

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job, unless the study is to end; what was cut short is no result.

        Raises:
            StudyStoppedError: When the study is to end.
            OutOfTimeError: When its time is over; says of a training run how long it would have taken.
        """
        self._end_if_over()
        began = time.monotonic()
        asked = _Asked(self._is_over, monitor.stop)
        try:
            outcome = self._inner.run(job, replace(monitor, stop=asked))
        except StudyStoppedError:  # raised between two steps, in words that do not know why
            self._end_if_over()
            raise
        if asked.is_cut:
            share = outcome.steps / job.steps if isinstance(job, TrainJob) and isinstance(outcome, Trained) else 0.0
            self._end((time.monotonic() - began) / share if share > 0.0 else math.nan)
        return outcome

    def _is_over(self) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or (self._stop is not None and self._stop())

    def _end_if_over(self, needed_seconds: float = math.nan) -> None:
        end_if_asked(self._stop)
        end_if_over(self.deadline, needed_seconds)

    def _end(self, needed_seconds: float) -> None:
        self._end_if_over(needed_seconds)
        raise StudyStoppedError(_ON_REQUEST)  # asked for a moment ago, and no longer


class _Asked:
    """Whether to end a job, for one of two reasons.

    Attributes:
        is_cut: Whether the study ended it.
    """

    def __init__(self, is_over: Callable[[], bool], stop: Callable[[], bool] | None) -> None:
        self._is_over, self._stop = is_over, stop
        self.is_cut = False

    def __call__(self) -> bool:
        self.is_cut = self.is_cut or self._is_over()
        return self.is_cut or (self._stop is not None and self._stop())
