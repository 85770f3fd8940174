"""Compare configurations on a task: metric and time of whole runs paired over seeds, steps timed in turn.

A step's time alone would mislead where configurations differ in how many steps a run takes, or in how large they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.metric_scale import MetricScale
from workbench.core.paired_bounds import (
    DropBounds,
    TimeRatio,
    paired_drop_bounds,
    paired_drops,
    run_time_ratio,
    smallest_gap,
)
from workbench.core.records import Event, StepRecord
from workbench.tasks import Task
from workbench.training.run import RunMonitor, RunProgress, RunRequest, RunResult, run_task
from workbench.training.speed import SpeedRatio, measure_speed_ratio

_ERROR = 0.025  # of each end of an interval
_WARM_UP_STEPS = 4


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration in a comparison, with its boost level and its name for a person."""

    label: str
    config: BoostConfig
    level: str = "O1"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """What one configuration gave; ``drop`` and the speeds compare it with the first side, and are None there."""

    label: str
    summary: str  # what is in effect
    metrics: tuple[float, ...]  # the final one per seed; NaN for a run that diverged
    drop: DropBounds | None  # paired over seeds
    run_speed: TimeRatio | None  # of whole runs, paired over seeds
    speed: SpeedRatio | None  # of step times
    paths: tuple[Path | None, ...]  # run directories, one per seed


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more configurations side by side; the first is the base."""

    task: str
    metric: str
    higher_is_better: bool
    steps: int  # micro-batches per run
    seeds: tuple[int, ...]  # the same for each side
    sides: tuple[ComparedSide, ...]

    def sentences(self) -> list[str]:
        """Return a sentence for each further side on how it compares with the first."""
        return [
            self._sentence(side, side.drop, side.run_speed, side.speed)
            for side in self.sides[1:]
            if side.drop and side.run_speed and side.speed
        ]

    def _sentence(self, side: ComparedSide, drop: DropBounds, runs: TimeRatio, steps: SpeedRatio) -> str:
        base = self.sides[0]
        per_step = f"{1 / steps.ratio:.2f} x per step ({1 / steps.high:.2f} to {1 / steps.low:.2f})"
        interval = f" (95 % interval {runs.low:.2f} to {runs.high:.2f})" if drop.n_pairs > 1 else ""
        faster = f"{side.label}: {runs.ratio:.2f} x as fast per run as {base.label}{interval}, {per_step}"
        # Left-out pairs are said: an average over the seeds that went well would flatter a side that diverges.
        diverged = _diverged(base) + _diverged(side)
        if not drop.n_pairs:
            return f"{side.label}: {per_step}; no seed gave a metric on both sides{diverged}."
        written = MetricScale(self.metric).difference_text
        if drop.mean == 0:
            change = f"{self.metric} equal on average"
        else:
            direction = "lower" if self.higher_is_better == (drop.mean > 0) else "higher"
            change = f"{self.metric} {written(abs(drop.mean))} {direction} on average"
        if drop.n_pairs == 1:
            seeds = "1 seed (one seed bounds nothing)"
        else:
            seeds = f"{drop.n_pairs} seeds (one-sided 95 % bound of the drop {written(drop.upper)})"
        return f"{faster}, {change} over {seeds}{diverged}."


def compare_configs(
    task: Task,
    sides: Sequence[Side],
    *,
    seeds: Sequence[int],
    steps: int,
    device: torch.device | None = None,
    out: Path | None = None,
    on_progress: Callable[[str, RunProgress], None] | None = None,
    on_records: Callable[[str, Sequence[StepRecord], Sequence[Event]], None] | None = None,
    evaluate_every: int | None = None,
) -> Comparison:
    """Train every side with every seed of weights, data order and split, and time every side against the first.

    ``on_progress`` is called with the run's label and its progress, ``on_records`` with its steps and events as they
    come; without ``out`` nothing is recorded. ``evaluate_every`` is in micro-batches, None for the end only.
    """
    if len(sides) < 2:
        raise ValueError(f"a comparison needs at least 2 configurations, got {len(sides)}")
    if not seeds:
        raise ValueError("a comparison needs at least 1 seed")
    device = device or devices.select_device("auto")
    results: list[list[RunResult]] = [[] for _ in sides]
    first = RunRequest(sides[0].config, sides[0].level, seeds[0], min(steps, _WARM_UP_STEPS))
    run_task(task, first, device=device, out=None)  # what a process does once is not the base's time
    for seed in seeds:  # seed by seed, so that an interruption leaves whole pairs behind
        for done, side in zip(results, sides, strict=True):
            request = RunRequest(side.config, side.level, seed, steps, evaluate_every)
            label = f"{side.label}, seed {seed}"
            monitor = RunMonitor(
                None if on_progress is None else partial(on_progress, label),
                on_records=None if on_records is None else partial(on_records, label),
            )
            done.append(run_task(task, request, device=device, out=out, monitor=monitor))
    metrics = [tuple(result.metric for result in done) for done in results]
    gap = smallest_gap(itertools.chain(*metrics))
    compared = []
    for i, (side, done, measured) in enumerate(zip(sides, results, metrics, strict=True)):
        drop = run_speed = speed = None
        if i > 0:
            both = [
                pair for pair in zip(results[0], done, strict=True) if all(math.isfinite(run.metric) for run in pair)
            ]
            pairs = [(first.metric, second.metric) for first, second in both]
            drop = paired_drop_bounds(paired_drops(pairs, higher_is_better=task.higher_is_better), resolution=gap)
            run_speed = run_time_ratio([(first.seconds, second.seconds) for first, second in both], error=_ERROR)
            base, other = (sides[0].config, sides[0].level), (side.config, side.level)
            speed = measure_speed_ratio(task, base, other, device=device, seed=seeds[0])
        summary = "; ".join((done[-1].plan.summary(), *done[-1].notes))
        paths = tuple(run.path for run in done)
        compared.append(ComparedSide(side.label, summary, measured, drop, run_speed, speed, paths))
    return Comparison(task.name, task.metric_name, task.higher_is_better, steps, tuple(seeds), tuple(compared))


def _diverged(side: ComparedSide) -> str:
    count = sum(not math.isfinite(metric) for metric in side.metrics)
    return f"; {side.label} diverged on {count} of {len(side.metrics)} seeds" if count else ""
