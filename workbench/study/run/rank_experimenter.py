"""A study whose trials train over several ranks: rank 0 searches, the others do what it does.

Before rank 0 runs a job that trains, it sends it to the other ranks; each runs it with its own experimenter, whose
training meets rank 0's in every collective. Study, storage, sampler and callbacks stay with rank 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, ReplayJob
from workbench.study.run.runner import Experimenter


@dataclass(frozen=True, slots=True)
class _End:
    """The study is over on rank 0."""

    result: Any


def follow(experimenter: Experimenter) -> Any:
    """Do what rank 0 does until it calls ``LeadingExperimenter.end``; return what it gave there."""
    from workbench.core import distributed as ranks

    while True:
        job: Any = ranks.broadcast_object(None)
        if isinstance(job, _End):
            return job.result
        try:
            run_together(experimenter, job, UNMONITORED)
        except OSError:  # a lost rank, a full disk: the study ends on every rank, as it would on one
            raise
        except Exception:  # it failed alike on every rank, and rank 0 decides what that means
            continue


class LeadingExperimenter:
    """Rank 0's experimenter: has the other ranks run each job together with its own."""

    def __init__(self, inner: Experimenter) -> None:
        self._inner = inner

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job over all ranks; times are by this rank's clock."""
        from workbench.core import distributed as ranks

        trains = not isinstance(job, ReplayJob)  # which is arithmetic on a run that is here
        if not trains:
            return self._inner.run(job, monitor)
        try:
            ranks.broadcast_object(job)
        except Exception as raised:  # a rank was lost between two jobs
            raise ranks.explained(raised) from raised
        return run_together(self._inner, job, monitor)

    def end(self, result: Any) -> None:
        """Let the other ranks go, with the study's result."""
        from workbench.core import distributed as ranks

        ranks.broadcast_object(_End(result))


def run_together(experimenter: Experimenter, job: Job[OutcomeT], monitor: Monitor) -> OutcomeT:
    """Run a job on every rank; raise what it raised, or RankFailure when only some ranks failed."""
    from workbench.core import distributed as ranks

    try:
        outcome = experimenter.run(job, monitor)
    except Exception as raised:
        error = ranks.explained(raised)
        if isinstance(error, ranks.RankFailure):
            raise error from raised
        if not isinstance(raised, OSError):  # those end the study, and leaving wakes ranks that did not fail
            ranks.together(raised)
        raise
    ranks.together(None)
    return outcome
