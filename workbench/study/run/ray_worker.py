"""What runs on a node of a Ray cluster: one process of a trial.

A `RayWorker` is the class of a Ray actor. It trains in one thread, the only one of its default concurrency group; two
more groups with a thread each let the driver listen and answer meanwhile:

    driver                                      worker
      work(job)  ----------------------------->   experimenter.run(job, monitor)
      messages()  <----------------------------     on_step, on_evaluation: a message
      answer(True)  -------------------------->     ... which waits for its answer: go on, or end here
      end_call()  ---------------------------->     stop() is True at the next step
      result  <--------------------------------   Trained(...)

It knows neither the study's database nor the other trials. Over several ranks every rank is such a worker; all make
the same call, and rank 0 alone has messages.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.config import NetworkFacts
from workbench.study.ask.study_file import StudyFile
from workbench.study.run import ray_folders
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import UNMONITORED, Job, Monitor, ReplayJob, RunStep, Trained
from workbench.study.run.runner import Experimenter

__all__ = ["CONCURRENCY_GROUPS", "Evaluated", "RayWorker", "TaskFacts"]

CONCURRENCY_GROUPS = {"messages": 1, "answers": 1}
"""Threads beside the one that trains: one waits for messages, one takes what the driver says."""

_STEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation whose run waits for an answer."""

    step: int
    metric: float


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the driver has to know of the task, which it does not load itself."""

    metric_name: str
    higher_is_better: bool
    data_hash: str
    environment: Mapping[str, Any]
    network: NetworkFacts | None


class RayWorker:
    """One process of a trial, on whatever node Ray has put it.

    Args:
        file: The study's file.
        directory: Folder of the study, on the driver's machine.
        token: What stands in the folder's marker, by which a shared folder is known.
        code: Python files beside the study file, for tasks named relative to it.
        make: Makes another experimenter than the task's own, for tests.
    """

    def __init__(
        self, file: StudyFile, directory: Path, token: str, code: Mapping[str, bytes], make: MakeExperimenter | None
    ) -> None:
        self._file = file
        self._make = make
        self._folder, self._shared = ray_folders.study_folder_here(directory, token, code)
        self._messages: queue.SimpleQueue[RunStep | Evaluated] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._number = 0
        self._ended = -1  # calls are numbered; an end may overtake the call it is for
        self._experimenter: Experimenter | None = (
            None  # made in the thread that trains: torch counts threads per thread
        )
        self._joined: Any = None
        self._device: Any = None

    def address(self) -> tuple[str, int, int]:
        """Return this node's address, a free port on it and this process's number."""
        import ray

        host = str(ray.util.get_node_ip_address())
        with socket.socket() as free:
            free.bind(("", 0))
            return host, int(free.getsockname()[1]), os.getpid()

    def join(self, rank: int, world_size: int, host: str, port: int) -> None:
        """Join the other ranks of the trial, as torchrun's variables would say.

        Args:
            rank: This worker's number.
            world_size: How many there are.
            host: Node of rank 0.
            port: Free port there.
        """
        from workbench.core import distributed as ranks

        told = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in told.items()})
        # For as long as this process lives; every worker sees its own accelerators only, so each has number 0.
        self._joined = ranks.joined(self._file.study.device)
        self._device = self._joined.__enter__()

    def facts(self) -> TaskFacts:
        """Return what is known of the task and of this machine."""
        one = self._own()
        return TaskFacts(one.metric_name, one.higher_is_better, one.data_hash, one.environment(), one.network_facts())

    def sees_folder(self) -> bool:
        """Return whether the study's folder here is the driver's."""
        return self._shared

    def work(self, number: int, job: Job[Any], *, evaluates: bool = False, packed: bytes = b"") -> tuple[Any, bytes]:
        """Run one job.

        Args:
            number: Of the call; larger than any before.
            job: What to do.
            evaluates: Whether evaluations are told and wait for an answer.
            packed: The run that a `ReplayJob` names, for a worker that does not see it.

        Returns:
            The outcome, and the packed run directory when the driver cannot see the folder; else empty.
        """
        self._number = number
        ray_folders.check_snapshots(job.configs, self._shared)
        if packed and isinstance(job, ReplayJob):
            job = replace(job, run_path=ray_folders.unpack_run(self._folder, job.run_path, packed))
        monitor = UNMONITORED
        if self._is_first():
            on_evaluation = self._evaluated if evaluates else None
            monitor = Monitor(on_evaluation, on_step=_Throttled(self._messages), stop=self._is_ended)
        result = self._run(job, monitor)
        if self._shared or not self._is_first() or not isinstance(result, Trained) or not result.path:
            return result, b""
        run = ray_folders.pack_run(self._folder, result.path)
        if run is None:
            stays = f"{result.path} was too large to be sent; it stays in {self._folder} on {socket.gethostname()}"
            return replace(result, path="", message=result.message or stays), b""
        shutil.rmtree(self._folder / result.path)
        return result, run

    def messages(self, seconds: float) -> list[RunStep | Evaluated]:
        """Return what has happened since last asked; waits up to some seconds for the first of it."""
        told: list[RunStep | Evaluated] = []
        try:
            told.append(self._messages.get(timeout=seconds))
            while True:
                told.append(self._messages.get_nowait())
        except queue.Empty:
            return told

    def answer(self, end: bool) -> None:
        """Answer the evaluation that waits: whether the run is to end."""
        self._answers.put(end)

    def end_call(self, number: int) -> None:
        """End a call at its next step."""
        self._ended = number
        self._answers.put(True)

    def _run(self, job: Job[Any], monitor: Monitor) -> Any:
        """Run a job; over ranks they end together, whether by a result or by the same error."""
        own = self._own()
        if self._joined is None or not job.trains:
            return own.run(job, monitor)
        from workbench.core import distributed as ranks

        try:
            result = own.run(job, monitor)
        except Exception as raised:
            error = ranks.explained(raised)
            if isinstance(error, ranks.RankFailure):
                raise error from raised
            ranks.together(raised)
            raise
        ranks.together(None)
        return result

    def _own(self) -> Experimenter:
        if self._experimenter is None:
            self._experimenter = experimenter_for(self._file, self._folder, self._make, self._device)
        return self._experimenter

    def _is_first(self) -> bool:
        return self._joined is None or os.environ["RANK"] == "0"

    def _is_ended(self) -> bool:
        return self._ended >= self._number

    def _evaluated(self, step: int, metric: float) -> bool:
        while not self._answers.empty():  # an answer to a run that was ended without a question
            self._answers.get()
        if self._is_ended():
            return True
        self._messages.put(Evaluated(step, metric))
        return self._answers.get()


class _Throttled:
    """Tell a run's steps now and then; a driver with a thousand trials need not hear of each."""

    def __init__(self, messages: queue.SimpleQueue[RunStep | Evaluated]) -> None:
        self._messages = messages
        self._told = 0.0

    def __call__(self, step: RunStep) -> None:
        now = time.monotonic()
        if now - self._told >= _STEP_SECONDS:
            self._told = now
            self._messages.put(step)
