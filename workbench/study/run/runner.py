"""What runs the jobs of a study: one method, and what is known of the task.

`TaskExperimenter` trains in this process; ``stopping.py``, ``rank_experimenter.py`` and ``ray_engine.py`` wrap ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.config import NetworkFacts
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT


class JobRunner(Protocol):
    """Runs jobs."""

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job to its end or until its monitor ends it, with a StudyStoppedError where a part is of no use."""


class KnownTask(Protocol):
    """What is known of a task."""

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
        """Return what the task's network offers to the methods; None where that is unknown."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What is known of a task, as values that travel; an environment is that of the machine that was asked."""

    metric_name: str
    higher_is_better: bool
    data_hash: str
    machine: Mapping[str, Any]
    network: NetworkFacts | None

    @classmethod
    def of(cls, task: KnownTask) -> TaskFacts:
        """Ask a task for all of it."""
        known = task.metric_name, task.higher_is_better, task.data_hash
        return cls(*known, task.environment(), task.network_facts())

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        return dict(self.machine)

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self.network


class Experimenter(JobRunner, KnownTask, Protocol):
    """Runs the jobs of one task, and knows the task."""


class ExperimenterWrapper:
    """What the wrappers have in common: they pass on what the inner one knows of the task."""

    def __init__(self, task: KnownTask) -> None:
        self._task = task
        self.metric_name, self.higher_is_better = task.metric_name, task.higher_is_better

    @property
    def data_hash(self) -> str:
        """Hash of the training data; reading them takes a while."""
        return self._task.data_hash

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        return self._task.environment()

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self._task.network_facts()
