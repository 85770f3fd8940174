"""Search with several processes that share the study's database.

Processes, not threads: training in threads shares one interpreter lock and one set of random states. They are spawned
fresh (a forked process may not use an accelerator) and end by themselves when the process that started them is gone,
so that ``kill -9`` leaves nobody training on.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from workbench.tuning.errors import StudyFailedError
from workbench.tuning.experimenter import MakeExperimenter
from workbench.tuning.searching import search

__all__ = ["run_workers"]

_POLL_SECONDS = 0.5


def run_workers(
    directory: Path,
    url: str,
    jobs: int,
    n_trials: int,
    deadline: float | None,
    make_experimenter: MakeExperimenter | None,
    on_poll: Callable[[], None],
) -> None:
    """Let ``jobs`` processes run the trials of a study whose O0 is done.

    Args:
        directory: Folder of the study.
        url: Optuna storage URL.
        jobs: Number of processes.
        n_trials: Finished trials of the whole study.
        deadline: ``time.monotonic()`` after which no trial is begun; None for none.
        make_experimenter: Who trains; a function at module level, or None.
        on_poll: Called now and then while they work.

    Raises:
        StudyFailedError: When a worker ended with an error.
    """
    context = multiprocessing.get_context("spawn")
    left = None if deadline is None else deadline - time.monotonic()
    workers: list[BaseProcess] = []
    try:
        for _ in range(jobs):
            arguments = (directory, url, n_trials, left, make_experimenter, os.getpid())
            worker: BaseProcess = context.Process(target=_work, args=arguments)
            worker.start()
            workers.append(worker)
        while any(worker.is_alive() for worker in workers):
            workers[0].join(_POLL_SECONDS)
            if not workers[0].is_alive():
                time.sleep(_POLL_SECONDS)
            on_poll()
    except BaseException:
        # SIGTERM is not caught there: the trial stays RUNNING and is put back by whoever holds the study next.
        for worker in workers:
            worker.terminate()
        raise
    finally:
        for worker in workers:
            worker.join()
    failed = [worker for worker in workers if worker.exitcode]
    if failed:
        raise StudyFailedError(f"{len(failed)} of {jobs} workers ended with an error; their messages stand above")


def _work(
    directory: Path,
    url: str,
    n_trials: int,
    seconds_left: float | None,
    make_experimenter: MakeExperimenter | None,
    parent: int,
) -> None:
    threading.Thread(target=_end_with, args=(parent,), name="parent watch", daemon=True).start()
    deadline = None if seconds_left is None else time.monotonic() + seconds_left
    search(directory, url, n_trials=n_trials, deadline=deadline, make_experimenter=make_experimenter)


def _end_with(parent: int) -> None:
    """End this process, whatever it is doing, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
