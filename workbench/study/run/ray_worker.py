"""What runs on the nodes of a Ray cluster: `RayWorker`, an actor that trains, and a task for each further rank.

The driver talks to the actor alone, which is rank 0. It starts the other ranks, which follow it as they do without Ray
(``rank_experimenter.py``), and Ray ends them with it: ranks come back together or not at all.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.study.ask.plans import FROM_SNAPSHOTS
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import Job, Monitor, RunStep, Trained
from workbench.study.run.rank_experimenter import LeadingExperimenter, follow
from workbench.study.run.ray_folder import SentFolder, pack_run
from workbench.study.run.ray_resources import TrialResources
from workbench.study.run.runner import Experimenter, TaskFacts

if TYPE_CHECKING:
    import torch

_WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RayStudy:
    """What processes in the cluster know of a study; ``make`` says who trains, ``resources`` are one process's."""

    file: StudyFile
    folder: SentFolder
    make: MakeExperimenter | None
    resources: TrialResources

    @property
    def n_ranks(self) -> int:
        """How many processes train a trial."""
        return self.file.study.ranks

    def remote(self, what: Any, group: Any, rank: int, **options: Any) -> Any:
        """Return a class or a function as Ray runs it, where a placement group has the room of a rank."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        return ray.remote(**self.resources.options, scheduling_strategy=there, **options)(what)


class RayWorker:
    """Runs the jobs of one slot, one after the other, on whatever node Ray has put it; the class of a Ray actor.

    `watch` has a thread for itself. The other methods share one, since torch counts its threads per thread.
    """

    def __init__(self, study: RayStudy, group: Any) -> None:
        self._study, self._group = study, group
        self._folder, self._shared = study.folder.here()
        self._experimenter: Experimenter | None = None
        self._for_life = contextlib.ExitStack()
        self._begin()

    def facts(self) -> TaskFacts:
        """Return what is known of the task and of this machine."""
        return TaskFacts.of(self._loaded())

    def run(self, job: Job[Any], *, evaluates: bool) -> tuple[Any, Mapping[str, bytes]]:
        """Run a job; return its outcome, and the files of its run directory where the driver does not see it.

        Where it ``evaluates``, it waits after each evaluation until `watch` brings the answer.
        """
        self._begin()
        monitor = Monitor(self._ask if evaluates else None, self._note, stop=lambda: self._stop)
        try:
            self._check_snapshots(job)
            return self._with_run(self._loaded().run(job, monitor))
        finally:
            self._evaluated.put(None)  # the watcher need not wait

    def watch(self, answer: bool | None, *, stop: bool) -> tuple[RunStep | None, tuple[int, float] | None]:
        """Say whether the evaluation that waits ends the run, if one waits, and whether anything else does.

        Returns the last step, and the step and metric of an evaluation, for which it waits a while; None for none.
        """
        self._stop = stop
        if answer is not None:
            self._answers.put(answer)
        with contextlib.suppress(queue.Empty):
            return self._step, self._evaluated.get(timeout=_WATCH_SECONDS)
        return self._step, None

    def _begin(self) -> None:
        self._stop = False
        self._step: RunStep | None = None
        self._evaluated: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def _note(self, step: RunStep) -> None:
        self._step = step

    def _ask(self, step: int, metric: float) -> bool:
        self._evaluated.put((step, metric))
        return self._answers.get()

    def _loaded(self) -> Experimenter:
        """Return who trains; the first time it starts the other ranks, joins them and loads the task."""
        if self._experimenter is None:
            study, device = self._study, None
            if study.n_ranks > 1:
                import ray

                from workbench.core import distributed

                self._store, where = distributed.serve_store(ray.util.get_node_ip_address())
                for rank in range(1, study.n_ranks):
                    # One call for a process, in which the next study must not find torchrun's variables.
                    other = study.remote(follow_rank_0, self._group, rank, max_retries=0, max_calls=1)
                    other.remote(study, rank, where)
                device = self._for_life.enter_context(_joined(study, 0, where))
            one = experimenter_for(study.file, self._folder, study.make, device)
            self._experimenter = one if study.n_ranks == 1 else LeadingExperimenter(one)
        return self._experimenter

    def _with_run(self, outcome: Any) -> tuple[Any, Mapping[str, bytes]]:
        if self._shared or not isinstance(outcome, Trained) or not outcome.path:
            return outcome, {}
        run = pack_run(self._folder, outcome.path)
        if run is None:
            stays = f"{outcome.path} was too large to be sent; it stays in {self._folder} on {socket.gethostname()}"
            return replace(outcome, path="", message=outcome.message or stays), {}
        shutil.rmtree(self._folder / outcome.path)
        return outcome, run

    def _check_snapshots(self, job: Job[Any]) -> None:
        """Refuse a configuration whose weight snapshots lie in a folder that this machine does not have."""
        for config in job.configs if not self._shared else ():
            folders = [attrgetter(method.snapshot_folder)(config) for method in FROM_SNAPSHOTS]
            if config.snapshots.count or any(folder and not Path(folder).exists() for folder in folders):
                raise ValueError(
                    f"{', '.join(one.name for one in FROM_SNAPSHOTS)} reads weight snapshots from the study's folder, "
                    "which this node does not see; put the study into a folder that all nodes share"
                )


def follow_rank_0(study: RayStudy, rank: int, where: Mapping[str, str]) -> None:
    """Be another rank until Ray ends it together with rank 0."""
    with _joined(study, rank, where) as device:
        follow(experimenter_for(study.file, study.folder.here()[0], study.make, device))


def _joined(study: RayStudy, rank: int, where: Mapping[str, str]) -> AbstractContextManager[torch.device]:
    """Join the ranks of a trial as torchrun's variables would say; some lead to where they meet."""
    from workbench.core import distributed

    # Every process sees its own accelerators only, so each has number 0.
    os.environ.update(where, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(study.n_ranks))
    return distributed.joined(study.file.study.device)
