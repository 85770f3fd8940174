"""Search with several processes that share the study's database.

Processes, not threads: training in threads shares one interpreter lock and one set of random states. They are spawned
fresh (a forked process may not use an accelerator) and end by themselves when the process that started them is gone.
Where there are several accelerators each has its own; on a CPU each has a share of the cores. Two workers that both let
torch take all cores slow each other down by more than half, and the speed they measure is then mostly noise.

A worker that dies is replaced, and its trial is run again; a trial that ends one worker after another is given up
(``study_storage.py``). A worker that ends with its own error reports it, and that ends the study.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from workbench.core.credentials import hide_passwords
from workbench.study.ask.study_file import read_study
from workbench.study.errors import StudyFailedError
from workbench.study.run.experimenter import MakeExperimenter
from workbench.study.run.searching import search

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("workbench")

_POLL_SECONDS = 0.25
_SECONDS_TO_END = 15.0
_DEATHS_PER_WORKER = 20
_MINUTES_OF_DEATHS = 10
_HAS_SAID_WHY = 3
"""Exit code of a worker that has sent its error to the process that started it."""


def run_workers(
    directory: Path,
    url: str,
    jobs: int,
    n_trials: int,
    deadline: float | None,
    make_experimenter: MakeExperimenter | None,
    on_poll: Callable[[], None],
) -> None:
    """Let ``jobs`` processes run the trials of a study whose O0 is done, until the study has enough.

    At the deadline, by ``time.monotonic()``, running trials are put back. ``on_poll``, called now and then, may raise
    to end the search.
    """
    context = multiprocessing.get_context("spawn")

    def start(index: int) -> tuple[SpawnProcess, Connection]:
        """Start a worker; return it with the end of the pipe through which it reports its error."""
        errors, own_end = context.Pipe(duplex=False)
        asked = (directory, url, n_trials, deadline, make_experimenter, index, jobs, os.getpid())
        process = context.Process(target=_work, args=(own_end, *asked))  # through a pipe, where no password shows
        process.start()
        own_end.close()
        return process, errors

    workers = {index: start(index) for index in range(jobs)}
    died_at: list[float] = []
    try:
        while workers:
            for index, (process, errors) in list(workers.items()):
                process.join(_POLL_SECONDS / jobs)
                code = process.exitcode
                if code is None:
                    continue
                del workers[index]
                if code == _HAS_SAID_WHY:
                    raise StudyFailedError(f"a worker process ended with an error: {_read(errors)}")
                if code != 0:
                    now = time.monotonic()
                    died_at = [*(one for one in died_at if now - one < _MINUTES_OF_DEATHS * 60.0), now]
                    if len(died_at) > _DEATHS_PER_WORKER * jobs:  # not even between trials do they live
                        raise StudyFailedError(
                            f"{len(died_at)} worker processes died within {_MINUTES_OF_DEATHS} minutes, the last by "
                            f"{how_it_ended(code)}; start fewer with --jobs, or look at what they print"
                        )
                    if deadline is not None and now >= deadline:
                        continue
                    _log.warning("a worker process died (%s); another takes its place", how_it_ended(code))
                    workers[index] = start(index)
            on_poll()
    finally:
        end_processes([process for process, _ in workers.values()])


def end_processes(processes: Sequence[SpawnProcess]) -> None:
    """End workers: each puts its trial back; one that does not get to it is killed and its trial found abandoned."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


def _read(errors: Connection) -> str:
    try:
        return str(errors.recv()) if errors.poll(1.0) else "it did not say which"
    except EOFError:
        return "it did not say which"


def how_it_ended(code: int) -> str:
    """Return what an exit code says: that of a process which a signal has ended is negative."""
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# -- in the worker -----------------------------------------------------------------------------------------------------


def _work(
    errors: Connection,
    directory: Path,
    url: str,
    n_trials: int,
    deadline: float | None,  # by `time.monotonic()`, which is the same clock in all processes
    make: MakeExperimenter | None,
    index: int,
    n_workers: int,
    parent: int,
) -> None:
    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C goes to all; who started us ends us
    threading.Thread(target=end_with, args=(parent,), name="parent watch", daemon=True).start()
    begun = threading.Event()
    if deadline is not None:
        threading.Thread(target=_end_at, args=(deadline, begun), name="deadline watch", daemon=True).start()
    device = read_study(directory).study.device
    try:
        taken = take_device(index, n_workers, device, trains=make is None)
        how: dict[str, Any] = {"make_experimenter": make, "device": taken, "on_begin": begun.set}
        search(directory, url, n_trials=n_trials, deadline=deadline, **how)
    except Exception as error:
        said = str(error) if type(error).__module__.startswith("workbench.") else f"{type(error).__name__}: {error}"
        errors.send(hide_passwords(said))
        sys.exit(_HAS_SAID_WHY)


def _end_now(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # the trial is put back on the way out


def end_with(parent: int) -> None:
    """End this process, whatever it is doing, once its parent is gone.

    ``multiprocessing.parent_process().join()`` would wait for whatever has inherited the parent's end of their pipe.
    """
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _end_at(deadline: float, begun: threading.Event) -> None:
    """End this process if it is still loading at its deadline; no trial is lost that way."""
    if not begun.wait(max(deadline - time.monotonic(), 0.0)):
        os._exit(0)


def core_share(cores: Sequence[int], index: int, n_workers: int) -> list[int]:
    """Return the cores of one worker: neighbours, each in one share; if workers outnumber cores, some share one.

    Example:
        >>> [core_share([0, 1, 2, 3, 4], index, 2) for index in range(2)]
        [[0, 1], [2, 3, 4]]
        >>> [core_share([0, 1], index, 3) for index in range(3)]
        [[0], [1], [0]]
    """
    ordered = sorted(cores)
    if n_workers >= len(ordered):
        return [ordered[index % len(ordered)]]
    return ordered[index * len(ordered) // n_workers : (index + 1) * len(ordered) // n_workers]


def take_device(index: int, n_workers: int, device: str, *, trains: bool = True) -> torch.device | None:
    """Take a worker's accelerator, or pin it to its share of the cores; call it before torch is imported.

    Returns the device to train on; None leaves it to the study. A stand-in that does not train needs no torch.
    """
    everything = os.sched_getaffinity(0) if device in {"auto", "cpu"} and hasattr(os, "sched_setaffinity") else set()
    share = core_share(list(everything), index, n_workers) if everything else []
    if share:
        os.sched_setaffinity(0, share)
    if not trains:
        return None
    from workbench.core import devices  # with torch, whose thread pools see the cores it is pinned to

    hardware = devices.hardware_summary()
    if hardware["accelerator_count"] and device != "cpu":
        if everything:
            os.sched_setaffinity(0, everything)  # its loaders and copies may run anywhere
        named = ":" in device
        return None if named else devices.rank_device(device, index % hardware["accelerator_count"])
    if share:
        devices.use_threads(min(hardware["torch_threads"], len(share)))
    return None
