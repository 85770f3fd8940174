"""Whoever runs the jobs of a study: one method, and what is known of the task.

`TaskExperimenter` trains in this process. Ending on request or at a deadline (``stopping.py``), several ranks
(``rank_experimenter.py``) and a Ray cluster (``ray_experimenter.py``) each wrap ``run``.
"""

from __future__ import annotations

from typing import Any, Protocol

from workbench.config import NetworkFacts
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT

__all__ = ["Experimenter", "ExperimenterWrapper", "JobRunner"]


class JobRunner(Protocol):
    """Runs jobs."""

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job to its end, or until its monitor ends it.

        Args:
            job: What to do.
            monitor: Who is told on the way, and may end it.

        Raises:
            StudyStoppedError: When the monitor's ``stop`` ended it where nothing can be made of a part.
        """


class Experimenter(JobRunner, Protocol):
    """Runs the jobs of one task, and knows the task."""

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods; None where nobody knows."""


class ExperimenterWrapper:
    """What the wrappers have in common: they pass on what the inner experimenter knows of the task.

    Args:
        inner: Who trains.
    """

    def __init__(self, inner: Experimenter) -> None:
        self._inner = inner

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""
        return self._inner.metric_name

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return self._inner.higher_is_better

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""
        return self._inner.data_hash

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        return self._inner.environment()

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self._inner.network_facts()
