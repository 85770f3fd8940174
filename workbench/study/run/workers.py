"""Search with several processes that share the study's database.

Processes, not threads: training in threads shares one interpreter lock and one set of random states. They are spawned
fresh (a forked process may not use an accelerator) and end by themselves when the process that started them is gone,
so that ``kill -9`` leaves nobody training on. Each has an accelerator of its own where there are several, and on a CPU
a share of the cores (``worker_place.py``).

A worker that dies (killed, out of memory, crashed in a library) is replaced, and its trial is run again; a trial that
ends one worker after another is given up (``study_storage.py``). A worker that ends with an error of its own says why,
and that ends the study.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from workbench.core.credentials import hide_passwords
from workbench.study.ask.study_file import read_study
from workbench.study.errors import StudyFailedError
from workbench.study.run.experimenter import MakeExperimenter
from workbench.study.run.searching import search
from workbench.study.run.worker_place import take_place

__all__ = ["run_workers"]

_log = logging.getLogger("workbench")

_POLL_SECONDS = 0.25
_SECONDS_TO_END = 15.0
_DEATHS_PER_PLACE = 20
_MINUTES_OF_DEATHS = 10
_TOLD = 3
"""Exit code of a worker whose error is told by the process that started it."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What a worker process is told; sent to it through a pipe, so that no password stands in a list of processes."""

    directory: Path
    url: str
    n_trials: int
    deadline: float | None  # seconds since 1970, since the monotonic clock may be another in another process
    seconds: float | None  # from when it was sent to the deadline: no more than that, whoever sets the clock meanwhile
    make_experimenter: MakeExperimenter | None
    place: int
    places: int
    parent: int


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process and the end of the pipe on which it tells its error."""

    process: SpawnProcess
    told: Connection


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
        deadline: ``time.monotonic()`` at which running trials are put back; None for none.
        make_experimenter: Who trains; a function at module level, or None.
        on_poll: Called now and then while they work.

    Raises:
        StudyFailedError: When a worker ended with an error, or one died after the other.
    """

    def start(place: int) -> _Worker:
        left = None if deadline is None else deadline - time.monotonic()
        ends = None if left is None else time.time() + left
        return _start(_Order(directory, url, n_trials, ends, left, make_experimenter, place, jobs, os.getpid()))

    workers = {place: start(place) for place in range(jobs)}
    died_at: list[float] = []
    try:
        while workers:
            for place, worker in list(workers.items()):
                worker.process.join(_POLL_SECONDS / jobs)
                code = worker.process.exitcode
                if code is None:
                    continue
                del workers[place]
                if code == _TOLD:
                    raise StudyFailedError(f"a worker process ended with an error: {_read(worker)}")
                if code != 0:
                    now = time.monotonic()
                    died_at = [*(one for one in died_at if now - one < _MINUTES_OF_DEATHS * 60.0), now]
                    if len(died_at) > _DEATHS_PER_PLACE * jobs:  # not even between trials do they live
                        raise StudyFailedError(
                            f"{len(died_at)} worker processes died within {_MINUTES_OF_DEATHS} minutes, the last by "
                            f"{_how(code)}; start fewer with --jobs, or look at what they print"
                        )
                    if deadline is not None and time.monotonic() >= deadline:
                        continue
                    _log.warning("a worker process died (%s); another takes its place", _how(code))
                    workers[place] = start(place)
            on_poll()
    finally:
        _end([worker.process for worker in workers.values()])


def _start(order: _Order) -> _Worker:
    context = multiprocessing.get_context("spawn")
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(order, telling))
    process.start()
    telling.close()
    return _Worker(process, told)


def _end(processes: list[SpawnProcess]) -> None:
    """End workers: each puts its trial back; one that does not get to it is killed and its trial found abandoned."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


def _read(worker: _Worker) -> str:
    try:
        return str(worker.told.recv()) if worker.told.poll(1.0) else "it did not say which"
    except EOFError:
        return "it did not say which"


def _how(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _work(order: _Order, telling: Connection) -> None:
    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C goes to all; who started us ends us
    threading.Thread(target=_end_with, args=(order.parent,), name="parent watch", daemon=True).start()
    deadline, begun = None, threading.Event()
    if order.deadline is not None and order.seconds is not None:
        deadline = time.monotonic() + min(order.deadline - time.time(), order.seconds)
        threading.Thread(target=_end_at, args=(deadline, begun), name="deadline watch", daemon=True).start()
    try:
        device = take_place(
            order.place,
            order.places,
            read_study(order.directory).study.device,
            trains=order.make_experimenter is None,
        )
        search(
            order.directory,
            order.url,
            n_trials=order.n_trials,
            deadline=deadline,
            make_experimenter=order.make_experimenter,
            device=device,
            on_begin=begun.set,
        )
    except Exception as error:
        told = str(error) if type(error).__module__.startswith("workbench.") else f"{type(error).__name__}: {error}"
        telling.send(hide_passwords(told))
        sys.exit(_TOLD)


def _end_now(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # the trial is put back on the way out


def _end_with(parent: int) -> None:
    """End this process, whatever it is doing, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _end_at(deadline: float, begun: threading.Event) -> None:
    """End this process if it is still loading at its deadline; no trial is lost that way."""
    if not begun.wait(max(deadline - time.monotonic(), 0.0)):
        os._exit(0)
