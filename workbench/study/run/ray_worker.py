"""What runs on the nodes of a Ray cluster: `RayWorker`, an actor that trains, and a task for each further rank.

The driver talks to the actor alone, which is rank 0 and starts the others. They follow it as they do without Ray
(``rank_experimenter.py``), and Ray ends them with it.

Usually all machines share the study's folder, which a secret word in a marker shows, and a worker writes runs where the
driver reads them. Else it gets its own folder with the study's Python files, and sends each recorded run back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from workbench.config import NetworkFacts
from workbench.core.files import free_path, write_text_atomically
from workbench.study.ask.plans import FROM_SNAPSHOTS
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import Job, Monitor, RunStep, SpeedJob, Trained, TrainJob
from workbench.study.run.rank_experimenter import LeadingExperimenter, follow
from workbench.study.run.ray_resources import TrialResources
from workbench.study.run.runner import TaskExpert

if TYPE_CHECKING:
    import torch

_MARKER = ".ray-driver"
_LARGEST_RUN_BYTES, _LARGEST_CODE_BYTES = 64 * 1024**2, 8 * 1024**2
_WATCH_SECONDS = 0.5

Files = Mapping[str, bytes]
"""Content by path, relative to some folder."""

TaskFacts = tuple[str, bool, str, dict[str, Any], NetworkFacts | None]
"""What is known of a task, in the order in which `Experimenter` tells it."""


@dataclass(frozen=True, slots=True)
class SentFolder:
    """A study's folder on its way to the nodes: its path, the word in its marker, its Python files."""

    path: Path
    token: str
    code: Files

    def here(self) -> tuple[Path, bool]:
        """Return where this machine keeps the study's runs, and whether the driver sees that folder."""
        # Else no such folder is here, or another machine's of the same name.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if (self.path / _MARKER).read_text(encoding="utf-8") == self.token:
                return self.path, True
        own = Path(tempfile.mkdtemp(prefix="workbench-study-"))
        _write_files(own, self.code)
        return own, False


@contextlib.contextmanager
def sent(directory: Path) -> Iterator[SentFolder]:
    """Mark a study's folder while the block runs; Python files of more than 8 MiB in all stay behind."""
    token, path = secrets.token_hex(16), directory.resolve()
    write_text_atomically(path / _MARKER, token)
    try:
        yield SentFolder(path, token, read_files(path, "*.py", _LARGEST_CODE_BYTES) or {})
    finally:
        (path / _MARKER).unlink(missing_ok=True)


def write_run(directory: Path, path: str, files: Files) -> str:
    """Write a run that was sent into the study's folder; return its path there, with a number when its own is taken."""
    folder = free_path(directory / path)
    _write_files(folder, files)
    return folder.relative_to(directory).as_posix()


def read_files(folder: Path, pattern: str, most: int) -> Files | None:
    """Return the files of a folder; None when they have more bytes than that."""
    files = [path for path in folder.glob(pattern) if path.is_file()]
    if sum(path.stat().st_size for path in files) > most:
        return None
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _write_files(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@dataclass(frozen=True, slots=True)
class RayStudy:
    """What processes in the cluster know of a study; ``make`` makes an experimenter, ``resources`` are per process."""

    file: StudyFile
    folder: SentFolder
    make: MakeExperimenter | None
    resources: TrialResources

    def remote(self, what: Any, group: Any, rank: int, **options: Any) -> Any:
        """Return a class or a function as Ray runs it, where a placement group has the room of a rank."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        return ray.remote(**self.resources.options, scheduling_strategy=there, **options)(what)


@dataclass(slots=True)
class _Running:
    """The job under way, shared by the thread that runs it and the one that watches it."""

    stop: bool = False
    step: RunStep | None = None
    evaluated: SimpleQueue[tuple[int, float] | None] = field(default_factory=SimpleQueue)
    answers: SimpleQueue[bool] = field(default_factory=SimpleQueue)

    def note(self, step: RunStep) -> None:
        self.step = step

    def ask(self, step: int, metric: float) -> bool:
        self.evaluated.put((step, metric))
        return self.answers.get()


class RayWorker:
    """Runs the jobs of one slot, one after the other, on whatever node Ray has put it; the class of a Ray actor.

    `watch` has a thread for itself. The other methods share one, since torch counts its threads per thread.
    """

    def __init__(self, study: RayStudy, group: Any) -> None:
        self._study, self._group = study, group
        self._folder, self._shared = study.folder.here()
        self._expert: TaskExpert | None = None
        self._for_life = contextlib.ExitStack()
        self._now = _Running()

    def facts(self) -> TaskFacts:
        """Return what is known of the task and of this machine."""
        here = self._loaded()
        known = here.metric_name, here.higher_is_better, here.data_hash
        return *known, here.environment(), here.network_facts()

    def run(self, job: Job[Any], *, evaluates: bool) -> tuple[Any, Files]:
        """Run a job; return its outcome, and the files of its run directory where the driver does not see it.

        Where it ``evaluates``, it waits after each evaluation until `watch` brings the answer.
        """
        self._now = now = _Running()
        try:
            if not self._shared:
                _refuse_snapshots(job)
            monitor = Monitor(now.ask if evaluates else None, now.note, lambda: now.stop)
            here, n_ranks = self._loaded(), self._study.file.study.ranks
            return self._with_run((here if n_ranks == 1 else LeadingExperimenter(here)).run(job, monitor))
        finally:
            now.evaluated.put(None)  # the watcher need not wait

    def watch(self, answer: bool | None, *, stop: bool) -> tuple[RunStep | None, tuple[int, float] | None]:
        """Answer whether the evaluation that waits, if one does, ends the run, and whether anything else does.

        Returns the last step, and step and metric of an evaluation, for which it waits a while; None without one.
        """
        now, evaluated = self._now, None
        now.stop = stop
        if answer is not None:
            now.answers.put(answer)
        with contextlib.suppress(Empty):
            evaluated = now.evaluated.get(timeout=_WATCH_SECONDS)
        return now.step, evaluated

    def _loaded(self) -> TaskExpert:
        """Return this rank's experimenter; the first call starts the other ranks, joins them and loads the task."""
        if self._expert is None:
            study, n_ranks, device = self._study, self._study.file.study.ranks, None
            if n_ranks > 1:
                import ray

                from workbench.core import distributed

                self._store, where = distributed.serve_store(ray.util.get_node_ip_address())
                for rank in range(1, n_ranks):
                    # One call for a process, in which the next study must not find torchrun's variables.
                    other = study.remote(follow_rank_0, self._group, rank, max_retries=0, max_calls=1)
                    other.remote(study, rank, where)
                device = self._for_life.enter_context(_joined(study, 0, where))
            self._expert = experimenter_for(study.file, self._folder, study.make, device)
        return self._expert

    def _with_run(self, outcome: Any) -> tuple[Any, Files]:
        if self._shared or not isinstance(outcome, Trained) or not outcome.path:
            return outcome, {}
        run = read_files(self._folder / outcome.path, "**/*", _LARGEST_RUN_BYTES)
        if run is None:
            stays = f"{outcome.path} was too large to be sent; it stays in {self._folder} on {socket.gethostname()}"
            return replace(outcome, path="", message=outcome.message or stays), {}
        shutil.rmtree(self._folder / outcome.path)
        return outcome, run


def _refuse_snapshots(job: Job[Any]) -> None:
    """Refuse a configuration whose weight snapshots are in a folder that this machine does not have."""
    configs = [job.config] if isinstance(job, TrainJob) else []
    configs += [job.candidate[0]] if isinstance(job, SpeedJob) else []
    for config in configs:
        folders = [attrgetter(method.snapshot_folder)(config) for method in FROM_SNAPSHOTS]
        if config.snapshots.count or any(folder and not Path(folder).exists() for folder in folders):
            raise ValueError(
                f"{', '.join(one.name for one in FROM_SNAPSHOTS)} reads weight snapshots from the study's folder, "
                "which this node does not see; put the study into a folder that all nodes share"
            )


def follow_rank_0(study: RayStudy, rank: int, where: Mapping[str, str]) -> None:
    """Act as another rank until Ray ends it together with rank 0."""
    with _joined(study, rank, where) as device:
        follow(experimenter_for(study.file, study.folder.here()[0], study.make, device))


def _joined(study: RayStudy, rank: int, where: Mapping[str, str]) -> AbstractContextManager[torch.device]:
    """Join the ranks of a trial as under torchrun; ``where`` has the variables that say where they meet."""
    from workbench.core import distributed

    # Every process sees its own accelerators only, so each has number 0.
    os.environ.update(where, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(study.file.study.ranks))
    return distributed.joined(study.file.study.device)
