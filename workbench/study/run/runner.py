"""How the jobs of a study are run, and where a time limit or a request to stop ends a running trial.

`TaskExperimenter` trains in this process; `StoppableExperimenter`, ``rank_experimenter.py``, ``process_trainer.py`` and
``ray_engine.py`` wrap its ``run``. Ctrl-C reaches only the main thread and a time limit reaches none, so
`StoppableExperimenter` looks at both before each job and at every step of a run. A trial cut short is put back; a run
that has just finished is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from workbench.config import NetworkFacts
from workbench.study.errors import OutOfTimeError, StudyStoppedError
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, Trained, TrainJob

_ON_REQUEST = "stopped on request; everything finished is saved, and the same study can be continued"


class LostTrialError(RuntimeError):
    """Process after process died under the same job; the message is one sentence."""


class StuckError(RuntimeError):
    """A step of a job did not end; the message is one sentence."""


def reason_of_failure(error: Exception) -> str:
    """Return why a trial failed: the sentence of an error of ours, of any other its class and what it says."""
    return str(error) if isinstance(error, LostTrialError | StuckError) else f"{type(error).__name__}: {error}"


class Experimenter(Protocol):
    """Runs the jobs of one task."""

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job until it is done or its monitor ends it: a StudyStoppedError if a part of it is no result."""


class TaskExpert(Experimenter, Protocol):
    """An experimenter that also knows what a study keeps of its task and of the machine."""

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""

    @property
    def data_hash(self) -> str:
        """Hash of the training data; an empty string if unknown."""

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods; None where that is unknown."""


def end_if_asked(stop: Callable[[], bool] | None) -> None:
    """Raise `StudyStoppedError` if ``stop`` is given and returns True."""
    if stop is not None and stop():
        raise StudyStoppedError(_ON_REQUEST)


def end_if_over(deadline: float | None, needed_seconds: float = math.nan) -> None:
    """Raise `OutOfTimeError` if a deadline (``time.monotonic()``) is over, or nearer than ``needed_seconds``."""
    left = math.inf if deadline is None else deadline - time.monotonic()
    if left <= 0.0 or left < needed_seconds:
        raise OutOfTimeError("the time limit ended it; everything finished is saved", needed_seconds)


@dataclass(slots=True)
class Limits:
    """When a study is to end, for all that train for it; the deadline may be changed between two jobs."""

    stop: Callable[[], bool] | None = None  # asked from the threads that train
    deadline: float | None = None  # by ``time.monotonic()``; None for never

    def check(self, needed_seconds: float = math.nan) -> None:
        """Raise a `StudyStoppedError` if it is to end now, or before so many seconds are over."""
        end_if_asked(self.stop)
        end_if_over(self.deadline, needed_seconds)


class StoppableExperimenter:
    """An experimenter that ends the study when its limits ask for it: between two jobs and within one step."""

    def __init__(self, inner: Experimenter, limits: Limits) -> None:
        self._inner, self.limits = inner, limits

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job, unless the study is to end (StudyStoppedError); what was cut short is not a result.

        The OutOfTimeError of a time limit tells how long a training run would have taken.
        """
        self.limits.check()
        began, cut = time.monotonic(), False

        def stop() -> bool:
            nonlocal cut
            asked, deadline = self.limits.stop, self.limits.deadline
            late = deadline is not None and time.monotonic() >= deadline
            cut = cut or late or (asked is not None and asked())
            return cut or (monitor.stop is not None and monitor.stop())

        try:
            outcome = self._inner.run(job, replace(monitor, stop=stop))
        except StudyStoppedError:  # raised between two steps, in words that do not know why
            self.limits.check()
            raise
        if cut:
            needed = math.nan
            if isinstance(job, TrainJob) and isinstance(outcome, Trained) and outcome.steps:
                # Loading, building and the first look at the metric are not repeated with the steps.
                needed = time.monotonic() - began + outcome.seconds * (job.steps / outcome.steps - 1.0)
            self.limits.check(needed)
            raise StudyStoppedError(_ON_REQUEST)  # asked for a moment ago, and no longer
        return outcome
