"""Experimenters in processes of their own, each with its accelerator or its share of the cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.errors import StudyFailedError
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT
from workbench.study.run.runner import Experimenter, ExperimenterWrapper
from workbench.study.run.workers import end_processes, end_with, how_it_ended, take_device

_POLL_SECONDS = 0.05
_TRIES = 3


def unused_places(file: StudyFile) -> str:
    """Return a sentence on what a study leaves idle if it trains one run at a time; empty where that is nothing."""
    from workbench.core import devices

    number = devices.places_to_train(file.study.device)
    return f"There is room to train {number} runs at a time here; --jobs {number} does." if number > 1 else ""


@contextlib.contextmanager
def process_trainers(
    file: StudyFile, directory: Path, jobs: int, make: MakeExperimenter | None, here: Experimenter
) -> Iterator[list[Experimenter]]:
    """Offer a trainer for each place (`devices.places_to_train`) while the block runs; none where there is but one.

    ``here`` is this process's experimenter, which knows the task.
    """
    number = jobs
    if make is None and jobs > 1:  # a fake needs no torch
        from workbench.core import devices

        number = min(jobs, devices.places_to_train(file.study.device))
    places = range(number if number > 1 else 0)
    trainers = [ProcessTrainer(here, (directory, make, place, number, os.getpid())) for place in places]
    try:
        yield [*trainers]
    finally:
        end_processes([one.process for one in trainers if one.process is not None])


class ProcessTrainer(ExperimenterWrapper):
    """Runs jobs in a process of its own, which begins with the first one and is replaced if it dies."""

    def __init__(self, here: Experimenter, asked: tuple[Any, ...]) -> None:
        super().__init__(here)
        self._asked = asked
        self._context = multiprocessing.get_context("spawn")
        self.process: SpawnProcess | None = None

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job there; of the monitor only ``stop`` is asked.

        A StudyFailedError if process after process dies under the job.
        """
        for _ in range(_TRIES):
            process = self._living()
            try:
                self._connection.send(job)
                while not self._connection.poll(_POLL_SECONDS):
                    if monitor.stop is not None and monitor.stop():
                        self._stop.set()
                outcome: OutcomeT | Exception = self._connection.recv()
            except (EOFError, ConnectionError):
                process.join()
                continue
            self._stop.clear()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        raise StudyFailedError(
            f"{_TRIES} processes died during one run, the last by {how_it_ended(process.exitcode or 0)}; start fewer "
            "with --jobs, or look at what they print"
        )

    def _living(self) -> SpawnProcess:
        """Return the process, another one if there is none that lives."""
        if self.process is None or not self.process.is_alive():
            self._connection, theirs = self._context.Pipe()
            self._stop = self._context.Event()
            self.process = self._context.Process(target=_serve, args=(theirs, self._stop, *self._asked))
            self.process.start()
            theirs.close()
        return self.process


def _serve(
    connection: Connection,
    stop: Event,
    directory: Path,
    make: MakeExperimenter | None,
    place: int,
    n_places: int,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C goes to all; who started us ends us
    threading.Thread(target=end_with, args=(parent,), name="parent watch", daemon=True).start()
    experimenter: Experimenter | None = None
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            if experimenter is None:
                file = read_study(directory)
                device = take_device(place, n_places, file.study.device, trains=make is None)
                experimenter = experimenter_for(file, directory, make, device)
            outcome = experimenter.run(job, Monitor(stop=stop.is_set))
        except Exception as error:
            outcome = _portable(error)
        connection.send(outcome)


def _portable(error: Exception) -> Exception:
    """Return an error that another process can read: its text where its class, a user's, may have its own arguments."""
    is_known = type(error).__module__.partition(".")[0] in {"builtins", "torch", "workbench"}
    return error if is_known else RuntimeError(f"{type(error).__name__}: {error}")
