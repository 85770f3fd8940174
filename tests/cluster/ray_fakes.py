"""Fakes that train in a Ray cluster: they note which process trained what, and some of them die."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.kit.fake_runner import FakeRunner, calls
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedJob, TrainJob

FIRST, DIES_ONCE = "trial_0000", "trial_0002"
MEETING_SECONDS = 120.0


class MortalRunner(FakeRunner):
    """Dies by kill -9 at the third evaluation of one trial, the first time; before that two processes have met."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob):
            return super().run(job, monitor)
        self.log(f"process {os.getpid()} {job.seed}")
        until = time.monotonic() + MEETING_SECONDS
        while job.run_id != FIRST and len(processes(self.directory)) < 2 and time.monotonic() < until:
            time.sleep(0.05)  # or one place has run everything before Ray has started the other
        before = sum(line.endswith(job.run_id) and line.startswith("train ") for line in calls(self.directory))

        def on_evaluation(step: int, metric: float) -> bool:
            if step == 30 and job.run_id == DIES_ONCE and not before:
                os.kill(os.getpid(), signal.SIGKILL)
            return monitor.on_evaluation is not None and monitor.on_evaluation(step, metric)

        return super().run(job, replace(monitor, on_evaluation=on_evaluation))


class TogetherRunner(FakeRunner):
    """Its metric is the mean over two ranks of what each rank has."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        from workbench.core import distributed as ranks

        if isinstance(job, TrainJob):
            self.log(f"rank {ranks.rank()} of {ranks.world_size()}")
            self.log(f"sum {ranks.mean_over_ranks([float(ranks.rank())])[0] * ranks.world_size():g}")
        elif isinstance(job, SpeedJob):
            ranks.barrier()
        return super().run(job, monitor)


def processes(directory: Path, first_seed: int = 0) -> set[str]:
    """Return the processes that trained, on this seed or later ones."""
    trained = (line.split() for line in calls(directory) if line.startswith("process "))
    return {process for _, process, seed in trained if int(seed) >= first_seed}


def make_mortal(file: StudyFile, directory: Path) -> FakeRunner:
    return MortalRunner(directory)


def make_together(file: StudyFile, directory: Path) -> FakeRunner:
    return TogetherRunner(directory)


def make_very_slow_fake(file: StudyFile, directory: Path) -> FakeRunner:
    return FakeRunner(directory, seconds=0.02)
