"""A made-up task whose truth is known: how good a set-up ends, and how long it takes.

Quality rises with the logarithm of the updates that count, falls with the distance of the learning rate from the
optimizer's best, and carries the noise of a seed. Averaging the weights costs nothing and does nothing: whoever
searches it has a part that is no gain.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.config import BoostConfig, NetworkFacts, OptimizerConfig
from workbench.methods.batch.section import BatchSection
from workbench.methods.schedule.section import ScheduleSection
from workbench.study.run.job import (
    UNMONITORED,
    Agreement,
    AgreementJob,
    Job,
    Monitor,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)

STEP_MS = 20.0

WORTH = {"AdamW": 1.8, "SGD": 1.0, "Adam": 1.5, "task": 1.0}
"""Optimizer -> how many of the task's updates one of its own is worth at its best rate."""

BEST_RATE = {"AdamW": 0.005, "SGD": 0.1, "Adam": 0.004, "task": 0.1}
COST = {"AdamW": 1.1, "SGD": 1.0, "Adam": 1.1, "task": 1.0}
SLOPE = 0.04
"""Metric lost by half as many updates that count, near the baseline's length."""


def optimizer_of(config: BoostConfig) -> str:
    return "task" if config.optimizer is None or config.optimizer.name is None else config.optimizer.name


def rate_of(config: BoostConfig) -> float:
    section = config.optimizer or OptimizerConfig()
    return (0.05 if section.lr is None else section.lr) * (section.lr_factor or 1.0)


def true_metric(config: BoostConfig) -> float:
    """Return the mean over seeds of the final metric; NaN where training diverges."""
    name, factor = optimizer_of(config), config.part(BatchSection).factor
    best = BEST_RATE[name] * math.sqrt(factor)
    off = math.log2(rate_of(config) / best)
    if off > 4.0:
        return math.nan
    worth = config.part(ScheduleSection).length * WORTH[name] * factor**-0.35 * 2.0 ** (-0.12 * off**2)
    return 0.98 - SLOPE * max(math.log2(BASE_WORTH / worth), -2.0) / (1.0 + 0.35 * worth / BASE_WORTH)


BASE_WORTH = 2.0 ** (-0.12 * 1.0)


def step_ratio(config: BoostConfig) -> float:
    """Return the time of a pass relative to the baseline's."""
    ratio = COST[optimizer_of(config)] * config.part(BatchSection).factor ** 0.75
    return ratio * (0.8 if config.amp.level == "O2" else 1.0)


def scaled(speed: SpeedMeasured, factor: float) -> SpeedMeasured:
    """Return a measurement of steps that take so many times as long."""
    return replace(speed, ratio=factor * speed.ratio, low=factor * speed.low, high=factor * speed.high)


class SurfaceRunner:
    """Runs a study's jobs on the surface, in no time.

    Args:
        directory: Folder of the study.
        noise: Standard deviation of a run's metric.
        seed: Of the noise.
        truth: Mean final metric of a configuration; NaN where it diverges.
        before: Called with each job.
        trained: Changes what a run came to.
        timed: Changes what a measurement came to.
    """

    def __init__(
        self,
        directory: Path,
        noise: float = 0.006,
        seed: int = 0,
        truth: Callable[[BoostConfig], float] = true_metric,
        *,
        before: Callable[[Job[Any]], None] = lambda _: None,
        trained: Callable[[TrainJob, Trained], Trained] = lambda _, run: run,
        timed: Callable[[SpeedJob, SpeedMeasured], SpeedMeasured] = lambda _, speed: speed,
    ) -> None:
        self.directory = directory
        self.noise = noise
        self.seed = seed
        self.truth = truth
        self.before, self.trained, self.timed = before, trained, timed
        self.metric_name = "accuracy"
        self.higher_is_better = True
        self.data_hash = "surface"
        self.jobs: list[Job[Any]] = []
        self.runs = 0

    def environment(self) -> dict[str, Any]:
        return {}

    def network_facts(self) -> NetworkFacts | None:
        return None

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        self.before(job)
        self.jobs.append(job)
        if isinstance(job, TrainJob):
            return self.trained(job, self._train(job))
        if isinstance(job, AgreementJob):
            return Agreement("")
        assert isinstance(job, SpeedJob)
        ratio = step_ratio(job.candidate[0])
        return self.timed(job, SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02, STEP_MS, 0.0))

    @property
    def train_jobs(self) -> list[TrainJob]:
        return [job for job in self.jobs if isinstance(job, TrainJob)]

    def _train(self, job: TrainJob) -> Trained:
        self.runs += 1
        config = job.config
        rng = np.random.default_rng([self.seed, job.seed, zlib.crc32(repr(config).encode())])
        common = np.random.default_rng([self.seed, job.seed]).normal(0.0, 0.004)
        metric = self.truth(config) + common + self.noise / math.sqrt(2.0) * rng.normal()
        passes = job.steps * config.part(ScheduleSection).length / config.part(BatchSection).factor
        seconds = passes * STEP_MS / 1e3 * step_ratio(config) * math.exp(0.02 * rng.normal())
        diverged = math.isnan(metric)
        curve = () if diverged else ((job.steps, metric),)
        return Trained(metric, curve, seconds, diverged, "the loss is nan" if diverged else "")
