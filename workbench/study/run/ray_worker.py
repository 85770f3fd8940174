"""What runs on a node of a Ray cluster: one process of a trial, and the study's folder as that node sees it.

Usually all machines share the folder, which a secret word in a marker tells, and a worker writes runs where the driver
reads them. Else it gets a folder of its own with the study's Python files, and sends each recorded run back.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import secrets
import shutil
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from workbench.config import NetworkFacts
from workbench.core.files import free_path, write_text_atomically
from workbench.study.ask.plans import FROM_SNAPSHOTS
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import UNMONITORED, Job, Monitor, RunStep, Trained
from workbench.study.run.rank_experimenter import run_together
from workbench.study.run.runner import Experimenter

_STEP_SECONDS = 0.5
_MARKER = ".ray-driver"
_LARGEST_RUN_BYTES = 64 * 1024**2
_LARGEST_CODE_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation, after which the run waits for `RayWorker.answer`."""

    step: int
    metric: float


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the driver has to know of the task, which it does not load itself."""

    metric_name: str
    higher_is_better: bool
    data_hash: str
    machine: Mapping[str, Any]
    network: NetworkFacts | None

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data of the machine that was asked."""
        return dict(self.machine)

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self.network


class RayWorker:
    """One process of a trial, on whatever node Ray has put it; the class of a Ray actor with two threads.

    One waits in `run`, the other takes what the driver says meanwhile. Training has a thread of its own, always the
    same one, since torch counts its threads per thread. ``code`` are the Python files beside the study file, ``token``
    is what stands in the folder's marker.
    """

    def __init__(
        self, file: StudyFile, directory: Path, token: str, code: Mapping[str, bytes], make: MakeExperimenter | None
    ) -> None:
        self._file, self._make = file, make
        self._folder, self._shared = study_folder_here(directory, token, code)
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._trainer = ThreadPoolExecutor(1)
        self._experimenter: Experimenter | None = None
        self._joined: Any = None
        self._device: Any = None
        self._rank = 0
        self._ended = 0  # number of the last job that is to end

    def address(self) -> tuple[str, int]:
        """Return this node's address and a free port on it."""
        import ray

        host = str(ray.util.get_node_ip_address())
        with socket.socket() as free:
            free.bind((host, 0))
            return host, int(free.getsockname()[1])

    def join(self, rank: int, world_size: int, host: str, port: int) -> None:
        """Join the other ranks of the trial, as torchrun's variables would say; rank 0 is at this host and port."""
        variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in variables.items()})
        self._rank = rank
        self._trainer.submit(self._join).result()

    def _join(self) -> None:
        from workbench.core import distributed as ranks

        # For as long as this process lives; every worker sees its own accelerators only, so each has number 0.
        self._joined = ranks.joined(self._file.study.device)
        self._device = self._joined.__enter__()

    def facts(self) -> TaskFacts:
        """Return what is known of the task and of this machine."""
        return self._trainer.submit(self._facts).result()

    def _facts(self) -> TaskFacts:
        one = self._own()
        return TaskFacts(one.metric_name, one.higher_is_better, one.data_hash, one.environment(), one.network_facts())

    def run(self, number: int, job: Job[Any], *, evaluates: bool) -> Iterator[Any]:
        """Run one job; its number is larger than any before, and its evaluations may wait for an answer.

        Rank 0 yields each `Evaluated` and now and then a `RunStep`; all at last the outcome with the packed run
        directory.
        """
        news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        result = self._trainer.submit(self._work, number, job, news if self._rank == 0 else None, evaluates)
        result.add_done_callback(lambda _: news.put(None))
        while (one := news.get()) is not None:
            yield one
        yield result.result()

    def answer(self, end: bool) -> None:
        """Answer the evaluation that waits: whether the run is to end."""
        self._answers.put(end)

    def end(self, number: int) -> None:
        """End a job at its next step."""
        self._ended = number

    def _work(
        self, number: int, job: Job[Any], news: queue.SimpleQueue[Any] | None, evaluates: bool
    ) -> tuple[Any, bytes]:
        self._check_snapshots(job)
        sent_at = -_STEP_SECONDS

        def on_step(step: RunStep) -> None:
            nonlocal sent_at
            if news is not None and time.monotonic() - sent_at >= _STEP_SECONDS:
                sent_at = time.monotonic()
                news.put(step)

        def on_evaluation(step: int, metric: float) -> bool:
            assert news is not None
            news.put(Evaluated(step, metric))
            return self._answers.get()

        monitor = UNMONITORED
        if news is not None:
            monitor = Monitor(on_evaluation if evaluates else None, on_step, stop=lambda: self._ended >= number)
        own = self._own()
        result: Any = own.run(job, monitor) if self._joined is None else run_together(own, job, monitor)
        if self._shared or news is None or not isinstance(result, Trained) or not result.path:
            return result, b""
        run = pack_run(self._folder, result.path)
        if run is None:
            stays = f"{result.path} was too large to be sent; it stays in {self._folder} on {socket.gethostname()}"
            return replace(result, path="", message=result.message or stays), b""
        shutil.rmtree(self._folder / result.path)
        return result, run

    def _own(self) -> Experimenter:
        if self._experimenter is None:
            self._experimenter = experimenter_for(self._file, self._folder, self._make, self._device)
        return self._experimenter

    def _check_snapshots(self, job: Job[Any]) -> None:
        """Refuse a configuration whose weight snapshots lie in a folder that this machine does not have."""
        for config in job.configs if not self._shared else ():
            folders = [attrgetter(method.snapshot_folder)(config) for method in FROM_SNAPSHOTS]
            if config.snapshots.count or any(folder and not Path(folder).exists() for folder in folders):
                raise ValueError(
                    f"{', '.join(one.name for one in FROM_SNAPSHOTS)} reads weight snapshots from the study's folder, "
                    "which this node does not see; put the study into a folder that all nodes share"
                )


@contextlib.contextmanager
def marked(directory: Path) -> Iterator[str]:
    """Mark a study's folder while the block runs; yield the word in the marker."""
    token = secrets.token_hex(16)
    write_text_atomically(directory / _MARKER, token)
    try:
        yield token
    finally:
        (directory / _MARKER).unlink(missing_ok=True)


def python_files(directory: Path) -> dict[str, bytes]:
    """Return name -> content of the Python files beside a study file, as long as they are few."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.glob("*.py")):
        content = path.read_bytes()
        if sum(map(len, found.values())) + len(content) <= _LARGEST_CODE_BYTES:
            found[path.name] = content
    return found


def study_folder_here(directory: Path, token: str, code: Mapping[str, bytes]) -> tuple[Path, bool]:
    """Return where this machine keeps the study's runs, and whether the driver sees that folder."""
    # Else no such folder is here, or another machine's of the same name.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (directory / _MARKER).read_text(encoding="utf-8") == token:
            return directory, True
    own = Path(tempfile.mkdtemp(prefix="workbench-study-"))
    for name, content in code.items():
        (own / name).write_bytes(content)
    return own, False


def pack_run(folder: Path, path: str) -> bytes | None:
    """Return a recorded run, named relative to a folder, as bytes; None when it is larger than 64 MiB."""
    files = [file for file in sorted((folder / path).rglob("*")) if file.is_file()]
    if sum(file.stat().st_size for file in files) > _LARGEST_RUN_BYTES:
        return None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for file in files:
            archive.add(file, arcname=file.relative_to(folder / path).as_posix(), recursive=False)
    return buffer.getvalue()


def unpack_run(directory: Path, path: str, packed: bytes) -> str:
    """Write a packed run into the study's folder; return its name there, with a number when its own is taken."""
    folder = free_path(directory / path)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")  # Python refuses links and paths that lead outside
    return folder.relative_to(directory).as_posix()
