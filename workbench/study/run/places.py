"""Search at several places at once: a thread for each, which draws trials here and has them trained there.

A place is a process of this machine (``process_trainer.py``) or a slot of a Ray cluster (``ray_engine.py``). The
database and its credentials stay with this process. A place that dies costs the job under way, which is run again; a
trial whose place dies again and again has failed.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyStoppedError
from workbench.study.run.runner import Experimenter, Limits, StoppableExperimenter
from workbench.study.run.searching import Search

SECONDS_TO_END = 15.0
"""How long a run has to end when asked, before what runs it is killed."""

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Place:
    """Where one trial at a time is trained; ``is_ready`` may wait a moment, ``close`` ends the run under way there."""

    trainer: Experimenter
    close: Callable[[], None]
    is_ready: Callable[[], bool] = lambda: True


def search_at(places: Sequence[Place], search: Search, on_poll: Callable[[], None]) -> None:
    """Go on with a search at all places, until the study has enough trials or the search's time is over.

    ``on_poll``, called now and then, may raise to end it.
    """
    ending, enough = threading.Event(), threading.Event()

    def run(place: Place) -> None:
        # A trial is drawn only once its place has room: by then more is known to draw it from.
        while not place.is_ready():
            is_late = search.deadline is not None and time.monotonic() >= search.deadline
            if is_late or ending.is_set() or enough.is_set():
                return
        trainer = StoppableExperimenter(place.trainer, Limits(ending.is_set, search.deadline))
        with contextlib.suppress(StudyStoppedError):  # its trial is back in the queue
            search.beside(trainer, ending.is_set).run()
            enough.set()

    with ThreadPoolExecutor(len(places), "place") as pool:
        searches = [pool.submit(run, place) for place in places]
        try:
            while wait(searches, _POLL_SECONDS, FIRST_EXCEPTION).not_done:
                if any(one.done() and one.exception() for one in searches):
                    break
                on_poll()
        finally:
            ending.set()
            if wait(searches, SECONDS_TO_END).not_done:
                for place in places:
                    place.close()
    for one in searches:
        one.result()


def idle_places(file: StudyFile, limit: float | None) -> int:
    """Return for how many runs at a time there are idle cores, in ``limit`` seconds; one more each where one reads."""
    from workbench.core import devices  # here: it imports torch

    beside = 1 if "prefetch" in file.set_up.runtime.get("runtime.data", ()) else 0
    return devices.idle_places_to_train(file.study.device, seconds=math.inf if limit is None else limit, beside=beside)


def about_places(file: StudyFile, asked: int | None, jobs: int, *, in_file: bool) -> str:
    """Return a sentence where idle cores were taken unasked, or more runs could be trained at a time than are.

    ``in_file``: the task is in a file, where other processes find it, too.
    """
    from workbench.core import devices

    if asked is None and jobs > 1:
        return f"Trains {jobs} runs at a time, on cores that were idle; {_asking_for(1)} trains one."
    number = devices.places_to_train(file.study.device)
    if number <= jobs:
        return ""
    how = f"{_asking_for(number)} uses it" if in_file else "a task in a file (my_task.py:task) could use it"
    return f"There is room to train {number} runs at a time here; {how}."


def _asking_for(jobs: int) -> str:
    return f"--jobs {jobs} (jobs={jobs} in Python, Workers in the Tune tab)"
