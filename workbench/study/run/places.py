"""Search at several places at once: a thread for each, which draws trials here and has them trained there.

A place is a process of this machine (``process_trainer.py``) or a slot of a Ray cluster (``ray_engine.py``). The
database and its credentials stay with this process. A place that dies costs the job under way, which is run again; a
trial whose place dies again and again has failed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

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
