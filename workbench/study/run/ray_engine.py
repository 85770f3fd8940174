"""``workbench tune --engine ray``: the trials of a study on the machines of a Ray cluster.

    driver: Study.ask / tell, sampler, pruner, database          slots: an actor each, in a placement group
      one thread per slot                       -- run(job) ---->    trains, alone or with other ranks
                                                -- watch ------->    steps, and evaluations for the next watch to answer
                                                <- outcome ------

The database and its credentials stay with the driver. Queueing, placement and scaling are Ray's: a slot that has no
room yet waits in Ray's queue, where an autoscaler sees it. A worker or node that dies costs the job under way, which is
run again. A dead driver takes its workers along, and the same command continues, as without Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from workbench.config import NetworkFacts
from workbench.core.arguments import seconds_from
from workbench.core.text import first_line
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyError
from workbench.study.run.experimenter import MakeExperimenter, replay_recorded
from workbench.study.run.job import UNMONITORED, Job, Monitor, ReplayJob
from workbench.study.run.places import Place, search_at
from workbench.study.run.ray_resources import parse_resources
from workbench.study.run.ray_worker import Files, RayStudy, RayWorker, TaskFacts, sent, write_run
from workbench.study.run.runner import Experimenter, LostTrialError, end_if_asked
from workbench.study.run.searching import Search

_TRIES = 3
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_ROOM_SECONDS = 20.0  # for the workers of slots to start where there is room
_WAIT_VARIABLE, _WAIT_SECONDS, _NOTE_SECONDS = "WORKBENCH_RAY_WAIT", 30.0, 5.0

_R = TypeVar("_R")


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
                _wait_for_room(ray, study, first.ready(), stop, deadline)
                with contextlib.closing(RayCrew(ray, study, first, self.jobs or max(1, _n_slots(ray, study)))) as crew:
                    yield crew


@contextlib.contextmanager
def joined_cluster(address: str | None) -> Iterator[Any]:
    """Join a Ray cluster while the block runs, and leave it at the end; one that was joined before is kept.

    Without an address it is what Ray finds by its own rule, or else a small one on this machine, while the study runs.
    Yields the module ``ray``, which is imported only when a study asks for it.
    """
    # Since Ray 2.5x a task without accelerators no longer hides them, and says so at every start unless asked not to.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A cluster that Ray starts itself listens on localhost, as elsewhere than on Linux; one that is joined is as it is.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise StudyError('--engine ray needs Ray; pip install "boost-workbench[cluster]"') from None
    if ray.is_initialized():
        yield ray
        return
    if address not in {None, "auto", "local"}:
        _check_address(str(address))
    # Only a cluster that Ray starts itself takes this.
    starts = address in {None, "local"} and not os.environ.get("RAY_ADDRESS")
    options = {"include_dashboard": False} if starts else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **options)
    except Exception as error:  # Ray raises one class per mistake, and plain Exception, too
        where = "on this machine" if address in {None, "auto", "local"} else f"at {address}"
        reason = first_line(error)
        raise StudyError(
            f"no Ray cluster can be joined {where} ({reason}); `ray start --head` starts one, --address HOST:PORT "
            "names one, and one with token authentication needs RAY_AUTH_MODE=token here, too"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that Ray would wait for without success, two minutes, and then end the whole process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise StudyError(
            "--address must be auto or HOST:PORT (Ray's port is 6379 unless set), where this command runs on a machine "
            f"of the cluster, got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StudyError(
            f"no Ray cluster answers at {address} ({reason}); `ray start --head` starts one and prints its address"
        ) from None


def _n_slots(ray: Any, study: RayStudy) -> int:
    """Return how many trials the cluster has room for as it is now; 0 when it has none."""
    return (
        sum(study.resources.room(node["Resources"]) for node in ray.nodes() if node["Alive"]) // study.file.study.ranks
    )


def _wait_for_room(
    ray: Any, study: RayStudy, ready: Any, stop: Callable[[], bool] | None, deadline: float | None
) -> None:
    """Wait until the first slot is ready, unless after a while the cluster cannot hold a trial at all."""
    try:
        seconds = seconds_from(_WAIT_VARIABLE, _WAIT_SECONDS, or_zero=True)
    except ValueError as error:
        raise StudyError(str(error)) from None
    n_ranks = study.file.study.ranks
    needs = f"{study.resources}" if n_ranks == 1 else f"{n_ranks} x ({study.resources})"
    began, noted = time.monotonic(), False
    while not ray.wait([ready], timeout=_POLL_SECONDS)[0]:
        end_if_asked(stop)
        if deadline is not None and time.monotonic() >= deadline:
            raise StudyError(
                "the time limit ended before the Ray cluster had room for a trial; give the command more time"
            )
        waited = time.monotonic() - began
        if waited > seconds and _n_slots(ray, study) < 1:
            raise StudyError(
                f"a trial needs {needs}, and no node of the Ray cluster has that ({_summary(ray)}); ask for less "
                f"with --resources-per-trial, add nodes, or set {_WAIT_VARIABLE} to the seconds that adding them takes"
            )
        if not noted and waited > _NOTE_SECONDS:
            noted = True
            note = f"note: waiting for room in the Ray cluster: a trial needs {needs}; there is {_summary(ray)}"
            print(note, file=sys.stderr, flush=True)


def _summary(ray: Any) -> str:
    nodes, amounts = sum(node["Alive"] for node in ray.nodes()), sorted(ray.cluster_resources().items())
    other = ("node:", "object_store_memory", "memory", "accelerator_type:")
    has = ", ".join(f"{name}={amount:g}" for name, amount in amounts if not name.startswith(other))
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} with {has or 'no resources'} in all"


class Slot:
    """Where trials run one after the other: a worker, with room for all ranks of a trial in a placement group.

    Making one asks Ray for room and does not wait for it. It is a `TaskExpert` once its task has been loaded.
    """

    def __init__(self, ray: Any, study: RayStudy) -> None:
        self._ray, self._study = ray, study
        self._group = ray.util.placement_group(
            [dict(study.resources.amounts)] * study.file.study.ranks, strategy="PACK"
        )
        self._start()

    def ready(self) -> Any:
        """Return a Ray reference that is ready when the slot is."""
        return self._worker.__ray_ready__.remote()

    def load(self) -> None:
        """Load the task there, and take note of what the worker knows of it."""
        facts: TaskFacts = self._call("loading", None, lambda: self._ray.get(self._worker.facts.remote()))
        self.metric_name, self.higher_is_better, self.data_hash, self._machine, self._network = facts

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data of the worker's node, as plain values."""
        return dict(self._machine)

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self._network

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Let the worker run a job, again where it dies; a run directory that is not shared is brought back."""
        folder = self._study.folder.path
        if isinstance(job, ReplayJob):  # arithmetic on a run that is here
            return replay_recorded(job, folder)
        # By step. The same seed gives the same curve: no evaluation is asked about twice.
        answers: dict[int, bool] = {}

        def run() -> tuple[Any, Files]:
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
            outcome: tuple[Any, Files] = self._ray.get(running)
            return outcome

        outcome, files = self._call(job.kind, monitor.stop, run)
        return replace(outcome, path=write_run(folder, outcome.path, files)) if files else outcome

    def close(self) -> None:
        """End the worker, with the ranks it has started, and give the room back."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._worker)
            self._ray.util.remove_placement_group(self._group)

    def _start(self) -> None:
        worker = self._study.remote(RayWorker, self._group, rank=0, concurrency_groups={"watch": 1})
        self._worker = worker.remote(self._study, self._group)

    def _call(self, doing: str, stop: Callable[[], bool] | None, call: Callable[[], _R]) -> _R:
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
                self.restart()
                raise
            self.restart()
        end_if_asked(stop)
        reason = " ".join(reason.split())[:300]
        raise LostTrialError(f"the worker died {_TRIES} times during `{doing}`; Ray says of the last: {reason}")

    def restart(self) -> None:
        """End the worker, whatever it does, and start another in its place."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._worker)
            self._start()


class RayCrew:
    """The slots of a study in the cluster: the first for everything that is done one by one, more from their first use.

    Further slots are asked for when they are needed first, and kept: tasks are loaded once. The driver keeps the study,
    and what the search knows of pruning and progress.
    """

    def __init__(self, ray: Any, study: RayStudy, first: Slot, jobs: int) -> None:
        first.load()
        self._ray, self._study, self.experimenter, self.jobs = ray, study, first, jobs
        self._more: list[Slot] = []
        self._asked_at = 0.0

    def close(self) -> None:
        """Give back what was asked for beyond the first slot."""
        for slot in self._more:
            slot.close()

    def trainers(self) -> Sequence[Experimenter]:
        """Return a trainer in each slot that the cluster has room for now; none for the first alone."""
        began = {one.ready(): one for one in self._others()}
        left = max(self._asked_at + _ROOM_SECONDS - time.monotonic(), _POLL_SECONDS)
        ready = self._ray.wait([*began], num_returns=len(began), timeout=left)[0] if began else []
        return [self.experimenter, *(began[one] for one in ready)] if ready else []

    def search(self, search: Search, on_poll: Callable[[], None]) -> None:
        """Go on with a search in all slots, as `search_at` does."""
        if self.jobs > 1:
            search_at([self._place(slot) for slot in (self.experimenter, *self._others())], search, on_poll)

    def _others(self) -> Sequence[Slot]:
        if not self._more:
            self._more = [Slot(self._ray, self._study) for _ in range(self.jobs - 1)]
            self._asked_at = time.monotonic()
        return self._more

    def _place(self, slot: Slot) -> Place:
        ready = slot.ready()
        return Place(slot, slot.restart, lambda: bool(self._ray.wait([ready], timeout=_POLL_SECONDS)[0]))
