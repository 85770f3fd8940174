"""``workbench tune --engine ray``: the trials of a study on the machines of a Ray cluster.

    driver: Study.ask / tell, sampler, pruner, database          slots: actors in the cluster
      one thread per slot, which only waits   --- run(job) --->    one process (or one per rank) that trains
                                              <- a generator ->    evaluations, each answered; at last the outcome

The database and its credentials stay with the driver; workers get configurations and numbers. Queueing, placement and
scaling are Ray's: a slot that has no room yet waits in Ray's queue, and that is what an autoscaler sees. A worker or
node that dies costs the job under way, which is run again. A dead driver takes its workers along, and the same command
continues, as without Ray.

Ray is imported here and only when a study asks for it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from workbench.core.arguments import seconds_from
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyError, StudyStoppedError
from workbench.study.run.experimenter import MakeExperimenter, replay_recorded
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, ReplayJob, RunStep, Trained
from workbench.study.run.ray_resources import TrialResources, parse_resources
from workbench.study.run.ray_worker import Evaluated, RayWorker, TaskFacts, marked, python_files, unpack_run
from workbench.study.run.runner import ExperimenterWrapper
from workbench.study.run.searching import Search
from workbench.study.run.stopping import StoppableExperimenter, end_if_asked
from workbench.study.store import storage as kept
from workbench.study.store.study_storage import StudyStorage

_WAIT_VARIABLE = "WORKBENCH_RAY_WAIT"
_WAIT_SECONDS = 30.0
_MOST_LOSSES = 3
_POLL_SECONDS = 0.5
_STOP_SECONDS = 0.2
_NOTE_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
_GRACE_SECONDS = 10.0
_MEETING_SECONDS = 300.0


_R = TypeVar("_R")


class LostTrialError(RuntimeError):
    """Worker after worker died under the same job; the message is one sentence."""


class _LostWorkerError(ConnectionError):
    """The process or the node that ran something is gone; the message says what Ray knows."""


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

        def end_if_waited_enough() -> None:
            end_if_asked(stop)
            if deadline is not None and time.monotonic() >= deadline:
                raise StudyError(
                    "the time limit ended before the Ray cluster had room for a trial; give the command more time"
                )

        with _joined_cluster(self.address) as ray, marked(directory) as token, contextlib.ExitStack() as slots:
            arguments = (file, directory.resolve(), token, python_files(directory), make)

            def new_slot() -> Slot:
                slot = Slot(ray, resources, ranks, arguments)
                slots.callback(slot.close)
                return slot

            first = new_slot()  # before there is room: an autoscaler sees who waits
            _wait_for_room(ray, resources, ranks, first.ready(), end_if_waited_enough)
            jobs = self.jobs or max(1, _n_slots(ray, resources, ranks))
            yield RayCrew(file, directory.resolve(), first, new_slot, jobs)


class Slot:
    """Where trials run one after the other: one worker, or one per rank of the trial, held by a placement group.

    Making one asks Ray for room and does not wait for it. In place of a worker that dies Ray is asked for another, on
    whatever node has room; of several ranks all begin again.
    """

    def __init__(self, ray: Any, resources: TrialResources, ranks: int, arguments: tuple[Any, ...]) -> None:
        self._ray, self._ranks, self._arguments = ray, ranks, arguments
        self._numbers = itertools.count(1)
        self._leave: Callable[[], None] = lambda: None
        actor = ray.remote(max_concurrency=2, **resources.options)(RayWorker)
        self._actors = [actor]
        if ranks > 1:
            groups = importlib.import_module("ray.util.placement_group")
            strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
            group = groups.placement_group([dict(resources.amounts)] * ranks, strategy="PACK")
            self._leave = lambda: groups.remove_placement_group(group)
            self._actors = [
                actor.options(scheduling_strategy=strategy(group, placement_group_bundle_index=rank))
                for rank in range(ranks)
            ]
        self._start()

    def ready(self) -> Any:
        """Return a Ray reference that is there when the slot is."""
        return self._workers[0].address.remote()

    def facts(self) -> TaskFacts:
        """Return what the workers know of the task; waits for the slot."""

        def ask() -> TaskFacts:
            self._meet()
            facts: list[TaskFacts] = self._ray.get([worker.facts.remote() for worker in self._workers])
            return facts[0]

        return self._call(ask)

    def work(self, job: Job[Any], monitor: Monitor, on_evaluation: Callable[[int, float], bool]) -> tuple[Any, bytes]:
        """Let the workers run one job; return its outcome, and the run directory that was sent with it.

        After a `_LostWorkerError`, when a worker or its node died, the slot is ready for another try.
        """

        def listen() -> tuple[Any, bytes]:
            self._meet()
            number, evaluates = next(self._numbers), monitor.on_evaluation is not None
            streams = [worker.run.remote(number, job, evaluates=evaluates) for worker in self._workers]
            outcomes: dict[Any, Any] = {}
            ended = False
            while len(outcomes) < len(streams):
                left = [stream for stream in streams if stream not in outcomes]
                ready, _ = self._ray.wait(left, num_returns=1, timeout=_STOP_SECONDS)
                if not ended and monitor.stop is not None and monitor.stop():
                    ended = True
                    self._workers[0].end.remote(number)
                for stream in ready:
                    news = self._ray.get(next(stream))  # raises what the job raised
                    if isinstance(news, Evaluated):
                        self._workers[0].answer.remote(on_evaluation(news.step, news.metric))
                    elif not isinstance(news, RunStep):
                        outcomes[stream] = news
                    elif monitor.on_step is not None:
                        monitor.on_step(news)
            result: tuple[Any, bytes] = outcomes[streams[0]]
            return result

        return self._call(listen)

    def close(self) -> None:
        """End the workers and give the room back."""
        self._kill()
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._leave()

    def _start(self) -> None:
        self._workers = [actor.remote(*self._arguments) for actor in self._actors]
        self._met = self._ranks == 1

    def _kill(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker)

    def _meet(self) -> None:
        if not self._met:
            where = self._ray.get(self.ready())
            joining = [one.join.remote(rank, self._ranks, *where) for rank, one in enumerate(self._workers)]
            try:
                self._ray.get(joining, timeout=_MEETING_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                raise _LostWorkerError(f"the ranks have not met within {_MEETING_SECONDS:g} seconds") from None
            self._met = True

    def _call(self, ask: Callable[[], _R]) -> _R:
        """Ask the workers; when one is lost, begin again with others and say so."""
        errors = self._ray.exceptions
        lost = (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
        try:
            return ask()
        except (*lost, _LostWorkerError) as error:
            reason = str(error)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if type(cause).__name__ != "RankFailure":
                if isinstance(cause, Exception) and not isinstance(cause, errors.RayError):
                    raise cause from None
                raise RuntimeError(str(error).strip().splitlines()[-1]) from None
            reason = str(cause)
        # Not Ray's max_restarts: calls to an actor that is being restarted fail at once, those to a new one wait; and
        # ranks come back together or not at all.
        self._kill()
        self._start()
        raise _LostWorkerError(" ".join(reason.split())[:300])


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
            return result  # type: ignore[no-any-return]
        answered: dict[int, bool] = {}  # the same seed gives the same curve: no evaluation is asked about twice

        def on_evaluation(step: int, metric: float) -> bool:
            if step not in answered:
                answered[step] = monitor.on_evaluation is not None and monitor.on_evaluation(step, metric)
            return answered[step]

        for losses in itertools.count(1):
            end_if_asked(monitor.stop)
            try:
                result, run = self._slot.work(job, monitor, on_evaluation)
                break
            except _LostWorkerError as error:
                end_if_asked(monitor.stop)
                if losses >= _MOST_LOSSES:
                    raise LostTrialError(
                        f"the worker died {losses} times during `{job.kind}`; Ray says of the last: {error}"
                    ) from None
        if run and isinstance(result, Trained):
            result = replace(result, path=unpack_run(self._directory, result.path, run))
        return result  # type: ignore[no-any-return]


class RayCrew:
    """The slots of a study in the cluster: the first for everything that is done one by one, more for the search."""

    def __init__(self, file: StudyFile, directory: Path, first: Slot, new_slot: Callable[[], Slot], jobs: int) -> None:
        self._file, self._directory, self._first, self._new_slot = file, directory, first, new_slot
        self._facts = first.facts()  # loads the task there
        self.jobs = jobs

    def experimenter(self) -> RayExperimenter:
        """Return who trains in the first slot."""
        return RayExperimenter(self._first, self._facts, self._directory)

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

        def run(slot: Slot) -> None:
            # No trial is drawn for a slot that has no room yet: it would be drawn from less than is known later.
            ready = slot.ready()
            while not slot._ray.wait([ready], timeout=_POLL_SECONDS)[0]:
                if ending.is_set() or enough.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    return
            trains = StoppableExperimenter(RayExperimenter(slot, self._facts, self._directory), ending.is_set, deadline)
            study = kept.find_study(database, self._file.study.name)  # each its own: a study object has one sampler
            where = (self._file, self._directory, database, study, trains)
            search = Search(*where, allowed, n_trials, deadline, stop=ending.is_set)
            with contextlib.suppress(StudyStoppedError):  # its trial is back in the queue
                search.run()
                enough.set()

        slots = [self._first, *(self._new_slot() for _ in range(self.jobs - 1))]
        with ThreadPoolExecutor(self.jobs, "slot") as pool:
            searches = [pool.submit(run, slot) for slot in slots]
            try:
                while True:
                    done, running = wait(searches, _POLL_SECONDS, FIRST_EXCEPTION)
                    if not running or any(one.exception() for one in done):
                        break
                    on_poll()
            finally:
                ending.set()
                running = wait(searches, _GRACE_SECONDS).not_done
                for slot in slots if running else slots[1:]:  # what comes after the search needs one slot
                    slot.close()
        for one in searches:
            one.result()


@contextlib.contextmanager
def _joined_cluster(address: str | None) -> Iterator[Any]:
    """Join a Ray cluster while the block runs, and leave it at the end; one that was joined before is kept.

    Without an address it is what Ray finds by its own rule, or else a small one on this machine, while the study runs.
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
        where = "on this machine" if address in {None, "auto"} else f"at {address}"
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise StudyError(
            f"no Ray cluster can be joined {where} ({reason}); `ray start --head` starts one, --address HOST:PORT "
            "names one, and one with token authentication needs RAY_AUTH_MODE=token here, too"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that Ray would wait for in vain: its own client ends the whole process then."""
    if "://" in address:
        raise StudyError(
            f"--address must be auto or HOST:PORT, got {address}; run this command on a machine of the cluster"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise StudyError(f"--address must be auto or HOST:PORT (Ray's port is 6379 unless set), got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StudyError(
            f"no Ray cluster answers at {address} ({reason}); `ray start --head` starts one and prints its address"
        ) from None


def _n_slots(ray: Any, resources: TrialResources, ranks: int) -> int:
    """Return how many trials the cluster has room for as it is now; 0 when it has none."""
    return sum(resources.room(node) for node in _nodes(ray)) // ranks


def _wait_for_room(
    ray: Any, resources: TrialResources, ranks: int, ready: Any, end_if_waited_enough: Callable[[], None]
) -> None:
    """Wait until the first slot is ready, unless after a while the cluster cannot hold a trial at all."""
    try:
        seconds = seconds_from(_WAIT_VARIABLE, _WAIT_SECONDS, or_zero=True)
    except ValueError as error:
        raise StudyError(str(error)) from None
    needs = f"{resources}" if ranks == 1 else f"{ranks} x ({resources})"
    began, noted = time.monotonic(), False
    while not ray.wait([ready], timeout=_POLL_SECONDS)[0]:
        end_if_waited_enough()
        waited = time.monotonic() - began
        if waited > seconds and _n_slots(ray, resources, ranks) < 1:
            raise StudyError(
                f"a trial needs {needs}, and no node of the Ray cluster has that ({_node_summary(ray)}); ask for less "
                f"with --resources-per-trial, add nodes, or set {_WAIT_VARIABLE} to the seconds that adding them takes"
            )
        if not noted and waited > _NOTE_SECONDS:
            noted = True
            note = f"note: waiting for room in the Ray cluster: a trial needs {needs}; there is {_node_summary(ray)}"
            print(note, file=sys.stderr, flush=True)


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _node_summary(ray: Any) -> str:
    nodes, total = _nodes(ray), dict[str, float]()
    for name, amount in itertools.chain.from_iterable(node.items() for node in nodes):
        if not name.startswith(("node:", "object_store_memory", "memory", "accelerator_type:")):
            total[name] = total.get(name, 0.0) + amount
    has = ", ".join(f"{name}={total[name]:g}" for name in sorted(total)) or "no resources"
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} with {has} in all"
