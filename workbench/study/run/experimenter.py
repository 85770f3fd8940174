"""Run a study's jobs in this process, on a task of ``workbench.tasks``.

``workbench.training`` is imported when the first job begins, so that reading a study's state needs no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from workbench.config import NetworkFacts
from workbench.config.run_request import RunRequest
from workbench.core.files import free_path
from workbench.core.out_of_memory import is_out_of_memory
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import (
    UNMONITORED,
    Agreement,
    AgreementJob,
    FreezingLimitJob,
    FreezingLimitMeasured,
    Job,
    Monitor,
    OutcomeT,
    PolicyOutcome,
    Replayed,
    ReplayJob,
    RunStep,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)
from workbench.study.run.runner import TaskExpert, end_if_asked

if TYPE_CHECKING:
    import torch

    from workbench.tasks import Task
    from workbench.training.checkpoint_folder import CheckpointFolder
    from workbench.training.speed import KeptBaseline

CHECKPOINTS = "checkpoints"
"""Name of the folder in a study's folder for the states of runs that are not over."""

_CHECKPOINT_SECONDS = 60.0

MakeExperimenter = Callable[[StudyFile, Path], TaskExpert]
"""Makes an experimenter from a study's file and folder."""


def experimenter_for(
    file: StudyFile, directory: Path, make: MakeExperimenter | None = None, device: torch.device | None = None
) -> TaskExpert:
    """Return a study's experimenter: what ``make`` makes, or else one for its task, on this device or the file's."""
    if make is not None:
        return make(file, directory)
    wanted = file.study.device if device is None else device
    return TaskExperimenter(file.study.task, wanted, directory / "runs", file.study.threads)


class TaskExperimenter:
    """Runs jobs in this process, on a task or the name of one.

    ``runs`` is the folder of the run directories; tasks in files may be named relative to its parent folder.
    Without ``threads`` the CPU threads of this process stay as they are. A training of more than a minute goes on from
    its last checkpoint when it is run again; on one rank only. There, too, a job that runs out of memory is run again,
    once: without what earlier jobs left behind, and without a second network.
    """

    def __init__(self, task: Task | str, device: str | torch.device, runs: Path, threads: int | None = None) -> None:
        from workbench.core import devices
        from workbench.core import distributed as ranks
        from workbench.tasks import load_task

        if threads is not None:
            devices.use_threads(threads)
        self._task = load_task(task, folder=runs.parent) if isinstance(task, str) else task
        self.metric_name, self.higher_is_better = str(self._task.metric_name), bool(self._task.higher_is_better)
        self._device = devices.select_device(device)
        self._runs = runs
        self._apart = False  # whether only one network fits while times are compared
        self._kept: KeptBaseline | None = None  # the baseline's network, while times are compared
        if self._device.type != "cpu" and ranks.world_size() == 1:
            from workbench.training.speed import KeptBaseline

            self._kept = KeptBaseline()
        #: A baseline and its seed, its first losses and its first gradient.
        self._first_numbers: tuple[Any, list[float], torch.Tensor] | None = None

    @property
    def data_hash(self) -> str:
        """Hash of the training data; an empty string if unknown."""
        return str(self._task.data_digest())

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        from workbench.core import devices
        from workbench.core import distributed as ranks
        from workbench.runs import collect_environment
        from workbench.tasks.loading import task_sources

        device = {**devices.hardware_summary(), "device": devices.device_name(self._device)}
        found = collect_environment(device=device, data_hash=self.data_hash, task=self._task.name)
        return {**found, "world_size": ranks.world_size(), "sources": task_sources(self._task)}

    def worker_processes(self) -> int:
        """Return how many processes read the training batches."""
        from workbench.tasks.reading import worker_processes

        return worker_processes(self._task.train)

    def network_facts(self) -> NetworkFacts:
        """Measure on a fresh copy of the network what the methods will find there."""
        from workbench.training.task_look import network_facts

        return network_facts(self._task)

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job in this process; a run is recorded under ``runs/<run_id>``, over several ranks by rank 0 alone."""
        from workbench.core import distributed as ranks
        from workbench.training.setup import callers_generators

        with callers_generators(self._device):
            try:
                result: OutcomeT = self._outcome(job, monitor)
                return result
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or ranks.world_size() > 1:
                    raise
            together, self._apart = self._apart, True
            if self._kept is not None:
                self._kept.drop()
            gc.collect()  # frames of errors, and what refers to itself, hold networks of earlier jobs
            try:
                result = self._outcome(job, monitor)
            except BaseException:
                self._apart = together  # it did not help
                raise
            self._apart, self._kept = together or isinstance(job, SpeedJob), None
            return result

    def _outcome(self, job: Job[Any], monitor: Monitor) -> Any:
        match job:
            case TrainJob():
                return self._train(job, monitor)
            case SpeedJob():
                return self._speed(job, monitor.stop)
            case ReplayJob():
                return replay_recorded(job, self._runs.parent)
            case AgreementJob():
                return self._agreement(job, monitor.stop)
            case FreezingLimitJob():
                return self._freezing_limit(job, monitor.stop)
        raise TypeError(f"`job` must be a job that trains, times or replays, got {type(job).__name__}")

    def _train(self, job: TrainJob, monitor: Monitor) -> Trained:
        from workbench.core import distributed as ranks
        from workbench.training.resuming import ResumeError
        from workbench.training.run import RunMonitor, RunProgress, RunResult, run_task

        began = time.monotonic()

        def tell(progress: RunProgress) -> None:
            if monitor.on_step is not None:
                monitor.on_step(RunStep(progress.step, progress.steps, progress.metric))

        if job.run_id and ranks.rank() == 0:
            self._runs.mkdir(parents=True, exist_ok=True)
            # What an interrupted run of that name left behind stays to be looked at.
            job = dataclasses.replace(job, run_id=free_path(self._runs / job.run_id).name)
        checkpoints = self._checkpoints_of(job) if ranks.world_size() == 1 and not job.is_timed else None

        def run() -> RunResult:
            return run_task(
                self._task if checkpoints is None else self._digested_task,
                job,
                device=self._device,
                out=self._runs if job.run_id else None,
                monitor=RunMonitor(tell, monitor.on_evaluation, monitor.stop),
                checkpoints=checkpoints,
            )

        try:
            result = run()
        except ResumeError:  # what an earlier process left cannot be used
            assert checkpoints is not None
            shutil.rmtree(checkpoints.folder)
            result = run()
        if checkpoints is not None and not result.stopped:
            shutil.rmtree(checkpoints.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others are training
                checkpoints.folder.parent.rmdir()
        path = "" if result.path is None else result.path.relative_to(self._runs.parent).as_posix()
        how = (result.seconds, result.diverged, result.message, path, result.overflows, result.steps)
        untrained = self._without_learning(job, monitor.stop) if job.also_untrained and not result.stopped else math.nan
        beside = max(time.monotonic() - began - result.seconds, 0.0)
        return Trained(result.metric, result.curve, *how, untrained, beside)

    def _without_learning(self, job: TrainJob, stop: Callable[[], bool] | None) -> float:
        from workbench.tasks.stoppable_task import stoppable
        from workbench.training.evaluation import metric_without_learning

        task = self._task if stop is None else stoppable(self._task, stop)
        try:
            return metric_without_learning(task, job.config, job.level, job.seed, self._device)
        except Exception:  # an untrained network may have no metric; a request to stop is the study's to see
            return math.nan

    @functools.cached_property
    def _digested_task(self) -> Task:
        """The task with its data's digest, which a checkpoint names; read once and not for each run."""
        return dataclasses.replace(self._task, data_hash=self._task.data_digest())

    @functools.cached_property
    def _sources(self) -> dict[str, str]:
        """The digests of the task's code as it was before the first run: later runs may import more of it."""
        from workbench.tasks.loading import task_sources

        return task_sources(self._task)

    def _checkpoints_of(self, job: TrainJob) -> CheckpointFolder:
        from workbench.training.checkpoint_folder import CheckpointFolder

        asked = {field.name: getattr(job, field.name) for field in fields(RunRequest) if field.name != "run_id"}
        asked |= {"config": job.config.to_dict(), "sources": self._sources}
        name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
        folder = self._runs.parent / CHECKPOINTS / name
        return CheckpointFolder(folder, None, _CHECKPOINT_SECONDS, keep=2, keep_end=False)

    def _speed(self, job: SpeedJob, stop: Callable[[], bool] | None) -> SpeedMeasured:
        from workbench.core import distributed as ranks
        from workbench.training.speed import measure_speed_ratio

        measured = measure_speed_ratio(
            self._task,
            job.baseline,
            job.candidate,
            device=self._device,
            seed=job.seed,
            rounds=job.rounds,
            steps_per_block=job.steps_per_block,
            loading=job.loading,
            precision=job.precision,
            apart=self._apart,
            kept=self._kept,
            stop=stop,
            # Several ranks end together, between two rounds.
            before_window=None if ranks.world_size() > 1 else lambda: end_if_asked(stop),
        )
        return SpeedMeasured(**{name: getattr(measured, name) for name in SpeedMeasured.__dataclass_fields__})

    def _agreement(self, job: AgreementJob, stop: Callable[[], bool] | None) -> Agreement:
        from workbench.core import distributed as ranks
        from workbench.training.agreement import agrees, first_gradient, first_losses, gradient_agrees

        given, asked = (
            (self._task, config, level, job.seed, self._device) for config, level in (job.baseline, job.candidate)
        )
        config, _ = job.candidate
        coarse = config.amp.dtype if config.effective_amp_level(self._device.type) != "O0" else "float32"
        # Several ranks compute all of it together.
        before_batch = functools.partial(end_if_asked, stop if ranks.world_size() == 1 else None)
        key = job.baseline, job.seed
        if self._first_numbers is None or self._first_numbers[0] != key:
            losses = first_losses(*given, before_batch=before_batch)
            before_batch()
            self._first_numbers = key, losses, first_gradient(*given)
        _, expected, expected_gradient = self._first_numbers
        losses = first_losses(*asked, before_batch=before_batch)
        why_not = agrees(losses, expected, coarse)
        if why_not:  # perhaps by luck
            why_not = agrees(losses, expected, coarse, first_losses(*given, before_batch=before_batch, redraw=True))
        if why_not:
            return Agreement(why_not)
        before_batch()
        gradient = first_gradient(*asked)
        why_not = gradient_agrees(gradient, expected_gradient, coarse)
        if why_not:
            why_not = gradient_agrees(gradient, expected_gradient, coarse, first_gradient(*given, redraw=True))
        return Agreement(why_not)

    def _freezing_limit(self, job: FreezingLimitJob, stop: Callable[[], bool] | None) -> FreezingLimitMeasured:
        from workbench.training.freezing_limit import measure_freezing_limit

        measured = measure_freezing_limit(
            self._task,
            job.candidate,
            device=self._device,
            seed=job.seed,
            rounds=job.rounds,
            steps_per_block=job.steps_per_block,
            before_window=lambda: end_if_asked(stop),
        )
        return FreezingLimitMeasured(*measured.realised, *measured.limit, *measured.reached)


def replay_recorded(job: ReplayJob, folder: Path) -> Replayed:
    """Run a `ReplayJob`, whose run is in a study's folder; it needs no task."""
    from workbench.loss_scale import ScalePolicy
    from workbench.runs import read_run
    from workbench.runs.replay import replay

    policies = [
        ScalePolicy(asked["init"], asked["factor"], int(asked["window"]), kind=asked.get("kind", "dynamic"))
        for asked in job.policies
    ]
    rows = replay(read_run(folder / job.run_path), policies).table.to_dict("records")
    kinds = get_type_hints(PolicyOutcome).items()
    found = ({name: kind(row.get(name, math.nan)) for name, kind in kinds} for row in rows)
    return Replayed(tuple(PolicyOutcome(**values) for values in found))
