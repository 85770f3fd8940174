"""An experimenter that trains somewhere in a Ray cluster: the driver keeps the study, a `Place` does the work.

What the search knows of pruning and progress stays with it: evaluations and steps come back as messages, answers and
the wish to end go there. A worker or node that dies costs the job under way; it is run again, and evaluations that
were answered before are answered the same without asking anybody, since the same seed gives the same curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.config import NetworkFacts
from workbench.study.run import ray_folders
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, ReplayJob, RunStep, Trained
from workbench.study.run.ray_place import LostWorkerError, Place
from workbench.study.run.ray_worker import Evaluated, TaskFacts
from workbench.study.run.stopping import end_if_asked

__all__ = ["LostTrialError", "RayExperimenter"]

MOST_LOSSES = 3
"""So often a job may lose its worker before its trial counts as the reason."""


class LostTrialError(RuntimeError):
    """Worker after worker died under the same job; the message is one sentence."""


class RayExperimenter:
    """Trains at a place in a Ray cluster.

    Args:
        place: Where.
        facts: What is known of the task.
        directory: Folder of the study.
        stop: Asked while waiting; True ends the study at the next step.
    """

    def __init__(self, place: Place, facts: TaskFacts, directory: Path, stop: Callable[[], bool] | None = None) -> None:
        self._place = place
        self._facts = facts
        self._directory = directory
        self._stop = stop

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""
        return self._facts.metric_name

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return self._facts.higher_is_better

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""
        return self._facts.data_hash

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data of the machine the first worker was on."""
        return dict(self._facts.environment)

    def network_facts(self) -> NetworkFacts | None:
        """Return what the first worker found of the task's network."""
        return self._facts.network

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job there; a run directory that is not shared is sent along, or brought back.

        Raises:
            LostTrialError: When worker after worker died.
            StudyStoppedError: When the study is to end.
        """
        answered: dict[int, bool] = {}

        def tell(message: Any) -> bool | None:
            if isinstance(message, RunStep):
                if monitor.on_step is not None:
                    monitor.on_step(message)
                return None
            if not isinstance(message, Evaluated) or monitor.on_evaluation is None:
                return None
            if message.step not in answered:
                answered[message.step] = monitor.on_evaluation(message.step, message.metric)
            return answered[message.step]

        def end() -> bool:
            stops = (monitor.stop if job.trains else None, self._stop)
            return any(asks() for asks in stops if asks is not None)

        packed = b""
        if isinstance(job, ReplayJob) and not self._retried(job.kind, self._place.sees_folder):
            packed = ray_folders.pack_run(self._directory, job.run_path) or b""
        evaluates = monitor.on_evaluation is not None
        outcome, run = self._retried(
            job.kind, lambda: self._place.work(job, tell=tell, end=end, evaluates=evaluates, packed=packed)
        )
        if run and isinstance(outcome, Trained):
            outcome = replace(outcome, path=ray_folders.unpack_run(self._directory, outcome.path, run))
        result: OutcomeT = outcome
        return result

    def _retried(self, what: str, ask: Callable[[], Any]) -> Any:
        """Ask again when the worker dies, a few times."""
        losses = 0
        while True:
            end_if_asked(self._stop)
            try:
                return ask()
            except LostWorkerError as error:
                losses += 1
                end_if_asked(self._stop)
                if losses >= MOST_LOSSES:
                    raise LostTrialError(
                        f"the worker died {losses} times during `{what}`; Ray says of the last: {error}"
                    ) from None
