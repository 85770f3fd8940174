"""``workbench tune --engine ray``: the trials of a study on the machines of a Ray cluster.

    driver: Study.ask / tell, sampler, pruner, database          places: workers in the cluster
      one thread per place, which only waits   <-- messages -->    one process (or one per rank) that trains

The database and its credentials stay with the driver; workers get configurations and numbers. Queueing,
placement and scaling are Ray's: a place that has no room yet waits in Ray's queue, and that is what an autoscaler sees.
A dead driver takes its workers along, and the same command continues, as without Ray.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyError, StudyStoppedError
from workbench.study.run import ray_folders
from workbench.study.run.experimenter import MakeExperimenter
from workbench.study.run.progress import StudyWatch
from workbench.study.run.ray_cluster import joined_cluster, n_places, wait_for_room
from workbench.study.run.ray_experimenter import RayExperimenter
from workbench.study.run.ray_place import Place
from workbench.study.run.ray_resources import parse_resources
from workbench.study.run.searching import Search
from workbench.study.run.stopping import StoppableExperimenter, end_if_asked
from workbench.study.run.warm_up import WarmUps
from workbench.study.store import storage as kept

__all__ = ["RayCrew", "RayEngine"]

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 10.0
_TELL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Where and how the trials of a study run with Ray.

    Args:
        resources: What one process of a trial needs, as on the command line.
        address: ``"auto"``, ``"host:port"``, or None for what Ray finds, or else this machine alone.
        jobs: Trials at a time; None for as many as the cluster has room for when the search begins. More than that
            wait in Ray's queue, where an autoscaler sees them.
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
        """Join the cluster and get a first place there, while the block runs.

        Args:
            file: The study's file.
            directory: Folder of the study.
            make: Makes another experimenter than the task's own, for tests.
            stop: Asked while waiting; True ends the study.
            deadline: ``time.monotonic()`` until which to wait for room; None for as long as it takes.

        Raises:
            StudyError: When the resources or the cluster are wrong, or the cluster never has room, or none before the
                deadline.
        """
        resources, ranks = parse_resources(self.resources), file.study.ranks
        if ranks > 1 and resources.shares_accelerator():
            raise StudyError(
                f"a study with `study.ranks` = {ranks} needs whole accelerators per rank, got {resources} in "
                "--resources-per-trial"
            )
        with joined_cluster(self.address) as ray, ray_folders.marked(directory) as token:
            code = ray_folders.python_files(directory)
            arguments = (file, directory.resolve(), token, code, make)
            places: list[Place] = []

            def new_place() -> Place:
                places.append(Place(ray, resources, ranks, arguments))
                return places[-1]

            try:
                first = new_place()  # before there is room: an autoscaler sees who waits
                wait_for_room(ray, resources, ranks, lambda: _end_waiting(stop, deadline))
                ready = first.ready()
                began, told = time.monotonic(), False
                while not ray.wait([ready], timeout=_POLL_SECONDS)[0]:
                    _end_waiting(stop, deadline)
                    if not told and time.monotonic() - began > _TELL_SECONDS:
                        told = True
                        print(
                            f"note: waiting for room in the Ray cluster: a trial needs {ranks} x ({resources})",
                            file=sys.stderr,
                            flush=True,
                        )
                jobs = self.jobs or max(1, n_places(ray, resources, ranks))
                yield RayCrew(ray, file, directory.resolve(), first, new_place, jobs, stop)
            finally:
                for place in places:
                    place.close()


class RayCrew:
    """The places of a study in the cluster: the first for everything that is done one by one, more for the search.

    Args:
        ray: The module.
        file: The study's file.
        directory: Folder of the study.
        first: The first place, which is ready.
        new_place: Makes one more.
        jobs: Trials at a time.
        stop: Asked while waiting; True ends the study.
    """

    def __init__(
        self,
        ray: Any,
        file: StudyFile,
        directory: Path,
        first: Place,
        new_place: Callable[[], Place],
        jobs: int,
        stop: Callable[[], bool] | None,
    ) -> None:
        self._ray = ray
        self._file = file
        self._directory = directory
        self._first = first
        self._new_place = new_place
        self._stop = stop
        self._facts = first.facts()  # loads the task there
        self.jobs = jobs

    def experimenter(self) -> RayExperimenter:
        """Return who trains at the first place."""
        return RayExperimenter(self._first, self._facts, self._directory, self._stop)

    def search(
        self,
        database: kept.StudyStorage,
        allowed: dict[str, float],
        n_trials: int,
        deadline: float | None,
        on_poll: Callable[[], None],
    ) -> None:
        """Run trials at all places until the study has enough; with one place there is nothing to do beside the driver.

        Args:
            database: The study's database, which only this process opens.
            allowed: Allowed drop per export.
            n_trials: Finished trials of the whole study.
            deadline: ``time.monotonic()`` after which no trial is begun; None for none.
            on_poll: Called now and then; may raise to end the search.

        Raises:
            StudyFailedError: When trials keep failing.
        """
        if self.jobs == 1:
            return
        ending, enough = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def run(place: Place) -> None:
            try:
                # No trial is drawn for a place that has no room yet: it would be drawn from less than is known later.
                ready = place.ready()
                while not self._ray.wait([ready], timeout=_POLL_SECONDS)[0]:
                    over = deadline is not None and time.monotonic() >= deadline
                    if over or enough.is_set() or ending.is_set():
                        return
                self._searching(place, database, allowed, n_trials, deadline, ending.is_set).run()
                enough.set()
            except StudyStoppedError:
                pass  # its trial is back in the queue
            except BaseException as error:  # the driver's own thread says it
                errors.append(error)
                ending.set()

        places = [self._first, *(self._new_place() for _ in range(self.jobs - 1))]
        threads = [threading.Thread(target=run, args=(place,), name=f"place {i}") for i, place in enumerate(places)]
        try:
            for thread in threads:
                thread.start()
            while alive := [thread for thread in threads if thread.is_alive()]:
                alive[0].join(_POLL_SECONDS)
                on_poll()
        finally:
            ending.set()
            until = time.monotonic() + _GRACE_SECONDS
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(until - time.monotonic(), 0.0))
            for place in places[1:]:  # what comes after the search needs one place; a call that did not end, ends now
                place.close()
            if any(thread.is_alive() for thread in threads):
                self._first.close()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if errors:
            raise errors[0]

    def _searching(
        self,
        place: Place,
        database: kept.StudyStorage,
        allowed: dict[str, float],
        n_trials: int,
        deadline: float | None,
        stop: Callable[[], bool],
    ) -> Search:
        trains = StoppableExperimenter(RayExperimenter(place, self._facts, self._directory, stop), stop, deadline)
        study = kept.find_study(database, self._file.study.name)  # each its own: a study object has one sampler
        file = kept.on_its_network(self._file, study)
        watch = StudyWatch(study, file, n_trials, None, None)
        warm_ups = WarmUps(file, self._directory, trains, watch.step)
        return Search(file, database, study, trains, warm_ups, allowed, n_trials, deadline, watch, stop)


def _end_waiting(stop: Callable[[], bool] | None, deadline: float | None) -> None:
    end_if_asked(stop)
    if deadline is not None and time.monotonic() >= deadline:
        raise StudyError("the time limit ended before the Ray cluster had room for a trial; give the command more time")
