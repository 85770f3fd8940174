"""``workbench tune --engine ray``: the trials of a study on the machines of a Ray cluster.

    driver: Study.ask / tell, sampler, pruner, database          slots: an actor each, in a placement group
      one thread per slot                       -- run(job) ---->    trains, alone or with other ranks
                                                -- watch ------->    steps, and evaluations for the next watch to answer
                                                <- outcome ------

The database and its credentials stay with the driver; workers get configurations and numbers. Queueing, placement and
scaling are Ray's: a slot that has no room yet waits in Ray's queue, and that is what an autoscaler sees. A worker or
node that dies costs the job under way, which is run again. A dead driver takes its workers along, and the same command
continues, as without Ray.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyError, StudyStoppedError
from workbench.study.run.experimenter import MakeExperimenter, replay_recorded
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, ReplayJob
from workbench.study.run.ray_cluster import joined_cluster, n_slots, wait_for_room
from workbench.study.run.ray_folder import sent, unpack_run
from workbench.study.run.ray_resources import parse_resources
from workbench.study.run.ray_worker import RayStudy, RayWorker
from workbench.study.run.runner import ExperimenterWrapper, TaskFacts
from workbench.study.run.searching import Search
from workbench.study.run.stopping import StoppableExperimenter, end_if_asked
from workbench.study.store import storage as kept
from workbench.study.store.study_storage import StudyStorage

_TRIES = 3
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 10.0


class LostTrialError(RuntimeError):
    """Worker after worker died under the same job; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Where and how the trials of a study run with Ray.

    Args:
        resources: What one process of a trial needs, as on the command line.
        address: ``"auto"``, ``"host:port"``, or None for what Ray finds, or else this machine alone.
        jobs: Trials at a time; None for as many as the cluster has room for when the search begins.
    """

    resources: str = "CPU=1"
    address: str | None = None
    jobs: int | None = None

    @contextlib.contextmanager
    def crew(
        self,
        file: StudyFile,
        directory: Path,
        make: MakeExperimenter | None = None,
        stop: Callable[[], bool] | None = None,
        deadline: float | None = None,
    ) -> Iterator[RayCrew]:
        """Join the cluster and get a first slot there, while the block runs."""
        resources, ranks = parse_resources(self.resources), file.study.ranks
        if ranks > 1 and resources.shares_accelerator():
            raise StudyError(
                f"a study with `study.ranks` = {ranks} needs whole accelerators per rank, got {resources} in "
                "--resources-per-trial"
            )

        with joined_cluster(self.address) as ray, sent(directory) as folder:
            study = RayStudy(file, folder, make, resources)
            # Asked for before there is room: an autoscaler sees who waits.
            with contextlib.closing(Slot(ray, study)) as first:
                wait_for_room(ray, study, first.ready(), stop, deadline)
                yield RayCrew(ray, study, first, self.jobs or max(1, n_slots(ray, study)))


class Slot:
    """Where trials run one after the other: a worker, with room for all ranks of a trial in a placement group.

    Making one asks Ray for room and does not wait for it.
    """

    def __init__(self, ray: Any, study: RayStudy) -> None:
        self._ray, self._study = ray, study
        self._group = ray.util.placement_group([dict(study.resources.amounts)] * study.n_ranks, strategy="PACK")
        self._start()

    def ready(self) -> Any:
        """Return a Ray reference that is there when the slot is."""
        return self._worker.__ray_ready__.remote()

    def facts(self) -> TaskFacts:
        """Return what the worker knows of the task."""
        facts: TaskFacts = self._call("loading", None, lambda: self._ray.get(self._worker.facts.remote()))
        return facts

    def work(self, job: Job[Any], monitor: Monitor) -> tuple[Any, dict[str, bytes]]:
        """Let the worker run a job; return its outcome, and the run directory that was sent with it."""
        # By step. The same seed gives the same curve: no evaluation is asked about twice.
        answers: dict[int, bool] = {}

        def run() -> Any:
            running = self._worker.run.remote(job, evaluates=monitor.on_evaluation is not None)
            watch, answer = self._worker.watch.options(concurrency_group="watch"), None
            while not self._ray.wait([running], timeout=0)[0]:
                stop = monitor.stop is not None and monitor.stop()
                step, evaluated = self._ray.get(watch.remote(answer, stop=stop))
                if step is not None and monitor.on_step is not None:
                    monitor.on_step(step)
                if evaluated is not None and monitor.on_evaluation is not None and evaluated[0] not in answers:
                    answers[evaluated[0]] = monitor.on_evaluation(*evaluated)
                answer = None if evaluated is None else answers[evaluated[0]]
            return self._ray.get(running)

        outcome: tuple[Any, dict[str, bytes]] = self._call(job.kind, monitor.stop, run)
        return outcome

    def close(self) -> None:
        """End the worker, with the ranks it has started, and give the room back."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._worker)
            self._ray.util.remove_placement_group(self._group)

    def _start(self) -> None:
        worker = self._study.remote(RayWorker, self._group, rank=0, concurrency_groups={"watch": 1})
        self._worker = worker.remote(self._study, self._group)

    def _call(self, doing: str, stop: Callable[[], bool] | None, call: Callable[[], Any]) -> Any:
        """Call the worker, and another in its place when it is lost; raise what it raised.

        Ray's max_restarts would do for a worker that dies, but not for one that has lost another rank, nor for one that
        is no longer listened to.
        """
        errors = self._ray.exceptions
        for _ in range(_TRIES):
            end_if_asked(stop)
            try:
                return call()
            except errors.RayTaskError as error:
                if type(error.cause).__name__ != "RankFailure":  # its module would import torch here
                    raise error.cause from None
                reason = str(error.cause)
            except (errors.RayActorError, errors.OutOfMemoryError) as error:
                reason = str(error)
            except BaseException:  # of a monitor
                self._restart()
                raise
            self._restart()
        end_if_asked(stop)
        reason = " ".join(reason.split())[:300]
        raise LostTrialError(f"the worker died {_TRIES} times during `{doing}`; Ray says of the last: {reason}")

    def _restart(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._worker)
            self._start()


class RayExperimenter(ExperimenterWrapper):
    """Trains in a slot; the driver keeps the study, and what the search knows of pruning and progress."""

    def __init__(self, slot: Slot, facts: TaskFacts, directory: Path) -> None:
        super().__init__(facts)
        self._slot, self._directory = slot, directory

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job there, again where its worker dies; a run directory that is not shared is brought back."""
        result: Any
        if isinstance(job, ReplayJob):  # arithmetic on a run that is here
            result = replay_recorded(job, self._directory)
        else:
            result, run = self._slot.work(job, monitor)
            if run:
                result = replace(result, path=unpack_run(self._directory, result.path, run))
        return result  # type: ignore[no-any-return]


class RayCrew:
    """The slots of a study in the cluster: the first for everything that is done one by one, more for the search."""

    def __init__(self, ray: Any, study: RayStudy, first: Slot, jobs: int) -> None:
        self._ray, self._study, self._first, self.jobs = ray, study, first, jobs
        self._facts = first.facts()  # loads the task there

    def experimenter(self, slot: Slot | None = None) -> RayExperimenter:
        """Return who trains in a slot, None for the first."""
        return RayExperimenter(slot or self._first, self._facts, self._study.folder.path)

    def search(
        self,
        database: StudyStorage,
        allowed: dict[str, float],
        n_trials: int,
        deadline: float | None,
        on_poll: Callable[[], None],
    ) -> None:
        """Run trials in all slots until the study has enough; ``on_poll``, called now and then, may raise to end it."""
        if self.jobs == 1:
            return
        ending, enough = threading.Event(), threading.Event()
        file, directory = self._study.file, self._study.folder.path

        def run(slot: Slot) -> None:
            # No trial is drawn for a slot that has no room yet: it would be drawn from less than is known later.
            ready = slot.ready()
            while not self._ray.wait([ready], timeout=_POLL_SECONDS)[0]:
                if ending.is_set() or enough.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    return
            trains = StoppableExperimenter(self.experimenter(slot), ending.is_set, deadline)
            study = kept.find_study(database, file.study.name)  # each its own: a study object has one sampler
            where = (file, directory, database, study, trains)
            search = Search(*where, allowed, n_trials, deadline, stop=ending.is_set)
            with contextlib.suppress(StudyStoppedError):  # its trial is back in the queue
                search.run()
                enough.set()

        slots = [self._first, *(Slot(self._ray, self._study) for _ in range(self.jobs - 1))]
        with ThreadPoolExecutor(self.jobs, "slot") as pool:
            searches = [pool.submit(run, slot) for slot in slots]
            try:
                while wait(searches, _POLL_SECONDS, FIRST_EXCEPTION).not_done:
                    if any(one.done() and one.exception() for one in searches):
                        break
                    on_poll()
            finally:
                ending.set()
                running = wait(searches, _GRACE_SECONDS).not_done
                for slot in slots if running else slots[1:]:  # what comes after the search needs one slot
                    slot.close()
        for one in searches:
            one.result()
